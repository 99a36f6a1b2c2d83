"use strict";
// The behaviour of the page: controls, and the three views (tiles, chart, table) of one calculation.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const machine = (name) => data.accelerators.find((accelerator) => accelerator.name === name);

  // Sliders reach over what is usual; the fields beside them take every value within the limits.
  const prompts = data.model_len - Math.max(data.inputs.output_tokens, Math.floor(data.model_len / 4));
  const reach = (value, usual) => Math.max(usual, value);
  const controls = [
    { id: "requests_per_day", group: "load", label: "Requests a day", unit: "requests", min: 0, max: 1e15, from: 1000, to: reach(data.inputs.requests_per_day, 1e9), log: true },
    { id: "prompt_tokens", group: "load", label: "Prompt", unit: "tokens a request", min: 1, max: data.model_len - 1, from: 16, to: prompts, log: true, whole: true },
    { id: "output_tokens", group: "load", label: "Answer", unit: "tokens a request", min: 1, max: data.model_len - 1, from: 16, to: data.model_len - prompts, log: true, whole: true },
    { id: "gpus", group: "fleet", label: "GPUs", unit: "that you pay for", min: 1, max: 1e8, from: 1, to: reach(data.inputs.gpus, 10000), log: true, whole: true },
    { id: "utilization", group: "fleet", label: "Busy today", unit: "percent of the time", min: 1, max: 100, from: 1, to: 100 },
    { id: "price", group: "fleet", label: "Price of a GPU", unit: "US dollars an hour", min: 0, max: 1e6, from: 0.1, to: reach(data.inputs.price, 20), log: true, cents: true },
    { id: "target_utilization", group: "expectations", label: "Busy afterwards", unit: "percent; the rest is for peaks", min: 1, max: 100, from: 1, to: 100 },
    { id: "prefix_hit", group: "expectations", label: "Prompts seen before", unit: "percent of their text", min: 0, max: 99, from: 0, to: 99 },
    { id: "acceptance", group: "expectations", label: "Guesses that are right", unit: "percent of drafted tokens", min: 0, max: 99, from: 0, to: 99 },
  ];

  const STEPS = 1000;
  const toSlider = (control, value) => {
    const bounded = Math.min(Math.max(value, control.from), control.to);
    if (value < control.from) return 0;
    const share = control.log
      ? Math.log(bounded / control.from) / Math.log(control.to / control.from)
      : (bounded - control.from) / (control.to - control.from);
    return Math.round(share * STEPS);
  };
  // Two figures are enough for a slider.
  const fromSlider = (control, position) => {
    if (position === 0 && control.min === 0) return 0;
    const share = position / STEPS;
    if (!control.log) return Math.round(control.from + share * (control.to - control.from));
    const value = control.from * (control.to / control.from) ** share;
    const rounded = Number(value.toPrecision(2));
    return control.cents ? Math.round(rounded * 100) / 100 : Math.round(rounded);
  };

  const number = (value, digits = 0) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const dollars = (value, digits = 0) => (value < 0 ? "−$" : "$") + number(Math.abs(value), digits);
  // Short for tiles and bars: whole dollars up to a million.
  const short = (value) => {
    const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"]];
    const unit = units.find(([size]) => Math.abs(value) >= size);
    return unit ? dollars(value / unit[0], 2) + unit[1] : dollars(value);
  };
  const perMillion = (value) => (value === null ? "–" : dollars(value, value < 0.1 ? 4 : 2));
  const speed = (value) => (value < 10 ? String(Number(value.toPrecision(2))) : number(value));
  const gpus = (count) => `${number(count)} ${count === 1 ? "GPU" : "GPUs"}`;
  const isLeftOut = (row) => ["no gain", "later", "not available"].includes(row.verdict);
  const words = { "in use": "in use already", later: "helps further down" };
  const effect = (row) => {
    if (row.key === "today") return "";
    if (row.verdict !== "applied") return words[row.verdict] || row.verdict;
    return row.factor < 1 ? "fewer GPUs" : `× ${number(row.factor, 2)}`;
  };

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function addControl(control) {
    const spoken = element("span", { class: "unit" }, control.unit);
    const label = element("label", { for: control.id }, control.label, spoken);
    const field = element("input", { type: "number", id: control.id, min: control.min, max: control.max, step: control.whole ? 1 : "any", required: "", "aria-describedby": `${control.id}-error` });
    const slider = element("input", { type: "range", id: `${control.id}-slider`, min: 0, max: STEPS, step: 1, "aria-label": `${control.label}, slider` });
    const error = element("p", { class: "error", id: `${control.id}-error`, role: "alert" });
    byId(control.group).append(element("div", { class: "control" }, label, field, slider, error));
    Object.assign(control, { field, slider, error, spoken });
    field.addEventListener("input", () => {
      if (field.value !== "") slider.value = toSlider(control, Number(field.value));
      show();
    });
    slider.addEventListener("input", () => {
      field.value = fromSlider(control, Number(slider.value));
      show();
    });
  }

  function set(id, value) {
    const control = controls.find((one) => one.id === id);
    control.field.value = value;
    control.slider.value = toSlider(control, value);
  }

  function addChoice() {
    const choice = element("select", { id: "accelerator" });
    for (const { name } of data.accelerators) choice.append(element("option", { value: name }, name));
    const label = element("label", { for: "accelerator" }, "Kind of GPU", element("span", { class: "unit" }, "sets the price to a usual one"));
    byId("fleet").append(element("div", { class: "control" }, label, choice));
    choice.addEventListener("change", () => {
      set("price", machine(choice.value).price);
      show();
    });
  }

  function reset() {
    byId("accelerator").value = data.accelerator;
    for (const control of controls) set(control.id, data.inputs[control.id]);
    show();
  }

  // What is wrong with a field; empty when nothing is.
  function problem(control) {
    const value = Number(control.field.value);
    if (control.field.value === "" || !Number.isFinite(value)) return "A number is needed here.";
    if (value < control.min || value > control.max) return `From ${number(control.min)} to ${number(control.max)}.`;
    return control.whole && !Number.isInteger(value) ? "A whole number, please." : "";
  }

  function read() {
    const problems = controls.map(problem);
    const inputs = Object.fromEntries(controls.map((control) => [control.id, Number(control.field.value)]));
    const output = controls.findIndex((control) => control.id === "output_tokens");
    if (problems.every((text) => !text) && inputs.prompt_tokens + inputs.output_tokens > data.model_len) {
      problems[output] = `Prompt and answer together: at most ${number(data.model_len)} tokens on this page.`;
    }
    controls.forEach((control, index) => {
      control.error.textContent = problems[index];
      control.field.setAttribute("aria-invalid", problems[index] ? "true" : "false");
      const spoken = number(Number(control.field.value), control.cents ? 2 : 0);
      control.slider.setAttribute("aria-valuetext", `${spoken} ${control.unit}`);
      if (control.id === "requests_per_day") control.spoken.textContent = problems[index] ? control.unit : spoken;
    });
    return problems.some(Boolean) ? null : inputs;
  }

  function show() {
    const inputs = read();
    byId("results").setAttribute("aria-busy", inputs ? "false" : "true");
    if (!inputs) return;
    const variants = machine(byId("accelerator").value).variants;
    const result = forebayRoi.calculate(data.constants, data.optimizations, inputs, variants);
    showTiles(result);
    byId("check").textContent = checked(result, inputs);
    showTable(result.rows);
    showChart(result.rows);
  }

  function showTiles({ rows }) {
    const first = rows[0];
    const last = rows[rows.length - 1];
    const month = () => element("small", {}, "a month");
    byId("today-cost").replaceChildren(short(first.cost), month());
    byId("today-detail").textContent = `${gpus(first.gpus)}, ${perMillion(first.cost_per_million_tokens)} per million tokens`;
    byId("after-cost").replaceChildren(short(last.cost), month());
    byId("after-detail").textContent = `${gpus(last.gpus)}, ${perMillion(last.cost_per_million_tokens)} per million tokens`;
    byId("saving-title").textContent = last.saving < 0 ? "You need more" : "You save";
    byId("saving").replaceChildren(short(Math.abs(last.saving)), month());
    byId("saving-title").closest(".tile").classList.toggle("strong", last.saving >= 0);
    const share = first.cost ? `${number((100 * Math.abs(last.saving)) / first.cost)}% ${last.saving < 0 ? "more" : "less"}, ` : "";
    byId("saving-detail").textContent = `${share}${short(Math.abs(last.saving) * 12)} a year`;
  }

  function checked(result, inputs) {
    const last = result.rows[result.rows.length - 1];
    if (last.saving < 0) return `This load needs more than today's ${gpus(inputs.gpus)}, by this arithmetic, even with every change. If they do serve it, they are better than it expects, or the numbers do not belong together.`;
    if (!inputs.requests_per_day) return "Without requests one copy of the model stays ready.";
    const now = result.rows[0].tokens_per_second;
    const alone = result.speed_one_at_a_time;
    const given = `Check: today a GPU at work gives ${speed(now)} tokens a second; one request at a time would give ${speed(alone)}`;
    if (now < alone / 1.5) return `${given}. The GPUs do other work as well, or are busy for less of the time.`;
    if (now > last.tokens_per_second) return `${given}, and all changes together ${speed(last.tokens_per_second)}. Today is better than this arithmetic expects: most of it is in use already, or the GPUs have work for more of the time.`;
    if (now > 1.5 * alone) return `${given}. So a part of what follows is in use already; the saving is against what you pay.`;
    return `${given}. Requests are served one at a time, or nearly so: the worst case.`;
  }

  function showTable(rows) {
    const body = rows.map((row, index) => {
      const step = data.optimizations[index - 1];
      const name = element("th", { scope: "row" }, step ? `${index}. ${row.name}` : row.name);
      name.append(element("span", {}, step ? step.plain : "What you pay now."));
      const saved = step ? dollars(row.saving) : "";
      const cells = [effect(row), number(row.gpus), dollars(row.cost), perMillion(row.cost_per_million_tokens), saved];
      return element("tr", { class: isLeftOut(row) ? "left-out" : "", "data-key": row.key }, name, ...cells.map((cell) => element("td", {}, cell)));
    });
    byId("rows").replaceChildren(...body);
  }

  function svg(name, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  function showChart(rows) {
    const width = Math.max(280, byId("chart").clientWidth);
    const isNarrow = width < 560;
    const left = isNarrow ? 0 : 190;
    const right = isNarrow ? 96 : 190;
    const line = isNarrow ? 52 : 36;
    const most = Math.max(...rows.map((row) => row.cost));
    const height = rows.length * line;
    const spoken = rows.map((row) => `${row.name}: ${short(row.cost)} with ${gpus(row.gpus)}${isLeftOut(row) ? ", left out" : ""}`);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Cost a month. ${spoken.join("; ")}.` });
    rows.forEach((row, index) => {
      const top = index * line + (isNarrow ? 22 : 5);
      const size = line - (isNarrow ? 28 : 10);
      const length = most ? Math.max(2, (row.cost / most) * (width - left - right)) : 2;
      const quiet = isLeftOut(row) ? " left-out" : "";
      const label = isNarrow ? { x: 0, y: top - 6 } : { x: left - 12, y: top + size / 2 + 5, "text-anchor": "end" };
      const amount = isNarrow || isLeftOut(row) ? short(row.cost) : `${short(row.cost)} · ${gpus(row.gpus)}`;
      picture.append(
        svg("text", { ...label, class: quiet.trim() }, row.name),
        svg("rect", { x: left, y: top, width: length, height: size, rx: 3, class: (index ? "bar" : "before") + quiet }),
        svg("text", { x: left + length + 8, y: top + size / 2 + 5, class: quiet.trim() }, isLeftOut(row) && !isNarrow ? `${amount} · ${effect(row)}` : amount),
      );
    });
    picture.append(svg("line", { x1: left, x2: left, y1: 0, y2: height, class: "axis" }));
    byId("chart").replaceChildren(picture);
  }

  addChoice();
  controls.forEach(addControl);
  for (const step of data.optimizations) {
    const source = element("span", { class: "source" }, ` Source: ${step.source}.`);
    byId("assumptions").append(element("li", {}, element("strong", {}, `${step.name}: `), `${step.assumes}.`, source));
  }
  for (const text of data.general) byId("general").append(element("li", {}, `${text[0].toUpperCase()}${text.slice(1)}.`));
  byId("inputs").addEventListener("submit", (event) => event.preventDefault());
  byId("inputs").addEventListener("reset", (event) => {
    event.preventDefault();
    reset();
  });
  new ResizeObserver(() => show()).observe(byId("chart"));
  reset();
})();
