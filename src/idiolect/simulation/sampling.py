"""Who takes part in a round."""

from __future__ import annotations

from idiolect.core import keys


def participants(seed: int, round: int, clients: int, participation: float, independent: bool = False) -> list[int]:
    """The clients of a round, ascending: a uniform draw of round(participation * clients), at least one.

    ``independent``: each client with probability ``participation``, whatever the others do; there may be none.
    """
    if independent:
        uniform_K = keys.generator(seed, round, "participation").random(clients)
        return [i for i in range(clients) if uniform_K[i] < participation]
    sample = keys.generator(seed, round, "participation").choice(
        clients, share_of(clients, participation), replace=False
    )
    return sorted(sample.tolist())


def share_of(clients: int, participation: float) -> int:
    """How many clients take part in a round: the share rounded, halves up, at least one."""
    return max(1, int(participation * clients + 0.5))
