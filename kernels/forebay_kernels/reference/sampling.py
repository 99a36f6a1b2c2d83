"""From logits to tokens, defined in plain PyTorch."""

from itertools import pairwise

import torch


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Set the logit of token t to -infinity where bit t % 32 of word t // 32 of its row is 0."""
    bits = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    is_allowed = ((bitmask.unsqueeze(2) >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits.masked_fill_(~is_allowed, -torch.inf)


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    draws: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row: softmax(logits / temperature), cut by top_k, then top_p, then min_p; where its draw falls.

    Tokens that are as likely as the last one kept are kept too.
    """
    logprobs = torch.log_softmax(logits.float(), -1)
    is_greedy = temperatures == 0
    best = logits.float().amax(-1, keepdim=True)
    scaled = (logits.float() - best) / torch.where(is_greedy, 1.0, temperatures).unsqueeze(1)
    weights = scaled.exp()  # the likeliest is 1
    ranked = weights.sort(-1, descending=True).values
    vocab_size = logits.shape[1]
    ranks = torch.where(top_ks > 0, top_ks.clamp(max=vocab_size), vocab_size).long()
    floor = ranked.gather(1, ranks.unsqueeze(1) - 1)  # [num_rows, 1]: weight of the last that top_k keeps
    cumulated = torch.where(ranked >= floor, ranked, 0.0).double().cumsum(-1)
    wanted = top_ps.double().unsqueeze(1) * cumulated[:, -1:]
    num_kept = (cumulated < wanted).sum(-1, keepdim=True).clamp(max=vocab_size - 1)
    floor = torch.maximum(floor, torch.where(top_ps.unsqueeze(1) < 1, ranked.gather(1, num_kept), 0.0))
    floor = torch.maximum(floor, min_ps.unsqueeze(1))
    sums = torch.where(weights >= floor, weights, 0.0).double().cumsum(-1)
    targets = sums[:, -1:] * draws.unsqueeze(1)
    drawn = (sums <= targets).sum(-1).clamp(max=vocab_size - 1)
    token_ids = torch.where(is_greedy, logits.argmax(-1), drawn)
    return token_ids, logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1)


def verify_draft(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_rows: torch.Tensor,
    accept_draws: torch.Tensor,
    draws: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence by sequence: accept drafts while draw < p / q, then draw from max(p - q, 0). Leviathan et al. 2023.

    "Fast inference from transformers via speculative decoding", arXiv:2211.17192, algorithm 1.
    """
    token_ids = torch.full_like(draft_token_ids, -1)
    bounds = cu_rows.tolist()
    num_accepted = torch.zeros(len(bounds) - 1, dtype=torch.int32, device=cu_rows.device)
    for seq, (first, end) in enumerate(pairwise(bounds)):
        row = first
        rest = target_probs[row]
        while row < end - 1:
            draft = draft_token_ids[row]
            p = target_probs[row]
            q = torch.nn.functional.one_hot(draft, len(p)).float() if draft_probs is None else draft_probs[row]
            if not accept_draws[row] * q[draft] < p[draft]:
                rest = (p - q).clamp(min=0)
                break
            token_ids[row] = draft
            row += 1
            rest = target_probs[row]
        sums = rest.double().cumsum(-1)
        is_beyond = (sums > draws[seq] * sums[-1]) & (rest > 0)
        token_ids[row] = int(is_beyond.nonzero()[0]) if bool(is_beyond.any()) else int(rest.nonzero()[-1])
        num_accepted[seq] = row - first
    return token_ids, num_accepted
