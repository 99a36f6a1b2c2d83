"use strict";
// The calculation of the page: the same formulas, in the same order, as throughput.py and calculate.py.
// A test compares the two over many inputs. It touches no document.

const forebayRoi = (() => {
  function batchSize(constants, variant, serving, inputs) {
    if (!serving.batched) return 1;
    const share = serving.paged ? constants.paged_share : constants.contiguous_share;
    const byCache = Math.floor((variant.kv_tokens * share) / (inputs.prompt_tokens + inputs.output_tokens));
    return Math.max(1, Math.min(variant.max_num_seqs, byCache));
  }

  function prefillUs(constants, variant, serving, inputs) {
    const prompt = inputs.prompt_tokens;
    const cached = serving.prefix ? (prompt * inputs.prefix_hit) / 100 : 0;
    const pairs = prompt * prompt - cached * cached;
    const flops = 2 * variant.active_parameters * (prompt - cached) + variant.attention_flops * pairs;
    let time = (flops / variant.tensor / variant.flops_per_second) * 1e6;
    if (!serving.fused) time += ((variant.score_bytes * pairs) / variant.bytes_per_second) * 1e6;
    return time + variant.collective_us + variant.collective_us_per_token * (prompt - cached) + constants.step_overhead_us;
  }

  function tokensPerStep(constants, acceptance) {
    let total = 1;
    let power = 1;
    for (let drafted = 0; drafted < constants.draft_tokens; drafted += 1) {
      power *= acceptance;
      total += power;
    }
    return total;
  }

  function decodeUs(constants, variant, serving, inputs, batch) {
    const context = inputs.prompt_tokens + Math.floor(inputs.output_tokens / 2);
    const kept = variant.window ? Math.min(context, variant.window) : context;
    const cache = batch * (context * variant.kv_bytes_per_token + kept * variant.sliding_bytes_per_token);
    const tokens = serving.speculative ? batch * (1 + constants.draft_tokens) : batch;
    const read = variant.touched.reduce((sum, [share, miss]) => sum + share * (1 - miss ** tokens), 0);
    const traffic = ((variant.weight_bytes * read + cache) / variant.bytes_per_second) * 1e6;
    const arithmetic = ((2 * variant.active_parameters * tokens) / variant.gpus / variant.flops_per_second) * 1e6;
    let step = Math.max(traffic, arithmetic) * variant.pipeline;
    step += variant.collective_us + variant.collective_us_per_token * tokens + constants.step_overhead_us;
    if (serving.speculative) {
      step = (step * (1 + constants.draft_tokens * constants.draft_cost)) / tokensPerStep(constants, inputs.acceptance / 100);
    }
    return (inputs.output_tokens * step) / batch;
  }

  function requestSeconds(constants, variant, serving, inputs) {
    const batch = batchSize(constants, variant, serving, inputs);
    return (prefillUs(constants, variant, serving, inputs) + decodeUs(constants, variant, serving, inputs, batch)) / 1e6;
  }

  // GPUs in whole replicas, at least one.
  function gpusNeeded(constants, variant, seconds, inputs, utilization) {
    const replicas = (inputs.requests_per_day * seconds) / constants.seconds_per_day / (utilization / 100);
    return Math.max(1, Math.ceil(replicas * (1 - constants.rounding))) * variant.gpus;
  }

  function states(constants, inputs, variants, formats, serving, utilization) {
    return variants
      .filter((variant) => formats.includes(variant.format))
      .map((variant) => {
        const seconds = requestSeconds(constants, variant, serving, inputs);
        const gpus = gpusNeeded(constants, variant, seconds, inputs, utilization);
        return { variant, serving, seconds, gpuSeconds: seconds * variant.gpus, gpus };
      });
  }

  // The bill first, then what is left for more load; the first of equals.
  const isLess = (one, other) => one.gpus < other.gpus || (one.gpus === other.gpus && one.gpuSeconds < other.gpuSeconds);
  const least = (candidates) => candidates.reduce((best, state) => (isLess(state, best) ? state : best));

  function verdictOf(constants, optimization, base, before, fresh, state) {
    if (optimization.formats.includes(base)) return ["in use", 1];
    if (!fresh.length) return ["not available", 1];
    const best = least(fresh);
    const factor = before.gpuSeconds / best.gpuSeconds;
    const gains = state !== before && (best.gpus < before.gpus || factor > 1 + constants.rounding);
    return gains ? ["applied", before.gpuSeconds / state.gpuSeconds] : ["no gain", factor];
  }

  // inputs: the fields of Inputs (gpus null: worked out). Returns {rows, gpus_one_at_a_time, speed_one_at_a_time}.
  function calculate(constants, optimizations, inputs, variants) {
    const base = variants[0].format;
    let formats = [base];
    let serving = {};
    let state = least(states(constants, inputs, variants, formats, serving, inputs.utilization));
    const alone = state.gpus;
    const now = inputs.gpus === null ? alone : inputs.gpus;
    const cost = (gpus) => gpus * inputs.price * constants.hours_per_month;
    const bill = cost(now);
    const row = (key, name, verdict, factor) => {
      const gpus = key === "today" ? now : state.gpus;
      const tokens = inputs.requests_per_day * (constants.hours_per_month / 24) * inputs.output_tokens;
      return {
        key,
        name,
        verdict,
        factor,
        format: state.variant.format,
        batch: batchSize(constants, state.variant, state.serving, inputs),
        gpus_per_replica: state.variant.gpus,
        tokens_per_second: inputs.output_tokens / state.gpuSeconds,
        gpus,
        cost: cost(gpus),
        cost_per_million_tokens: tokens ? (cost(gpus) / tokens) * 1e6 : null,
        saving: bill - cost(gpus),
      };
    };
    const aloneSpeed = inputs.output_tokens / state.gpuSeconds;
    let speed = aloneSpeed;
    if (inputs.gpus !== null) {
      const served = (inputs.requests_per_day * inputs.output_tokens) / constants.seconds_per_day;
      speed = served / ((inputs.gpus * inputs.utilization) / 100) || aloneSpeed;
    }
    const rows = [{ ...row("today", "Today", "applied", 1), tokens_per_second: speed }];
    const utilization = Math.max(inputs.utilization, inputs.target_utilization);
    for (const optimization of optimizations) {
      const before = { ...state, gpus: gpusNeeded(constants, state.variant, state.seconds, inputs, utilization) };
      if (optimization.switch) serving = { ...serving, [optimization.switch]: true };
      const wanted = optimization.formats.length ? optimization.formats : formats;
      const fresh = states(constants, inputs, variants, wanted, serving, utilization);
      formats = formats.concat(optimization.formats);
      // What was introduced earlier and did not help can help now.
      state = least([before, ...states(constants, inputs, variants, formats, serving, utilization)]);
      const [verdict, factor] = verdictOf(constants, optimization, base, before, fresh, state);
      rows.push(row(optimization.key, optimization.name, verdict, factor));
    }
    rows[1].factor = rows[1].tokens_per_second / speed;
    if (rows[1].factor < 1) rows[1].verdict = "in use";
    // What did not help at first, but is used further down.
    optimizations.forEach((optimization, index) => {
      const after = rows.slice(index + 2);
      const isUsed = after.some((later) => optimization.formats.includes(later.format));
      if (rows[index + 1].verdict === "no gain" && isUsed) rows[index + 1].verdict = "later";
    });
    return { rows, gpus_one_at_a_time: alone, speed_one_at_a_time: aloneSpeed };
  }

  return { calculate };
})();
