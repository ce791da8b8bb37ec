"""The colours and dashes of methods and of clients.

Colours of text, grids and scales come from the page (light or dark); a method's colour is the same in all figures of a
page.
"""

from __future__ import annotations

from idiolect.runs.reader import Run

# The colours of Okabe & Ito (2008), with grey for black, which cannot be seen on a dark page, and the palest last; then
# four of Tol's "muted" colours (2021) for more than eight methods.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#F0E442")
PALETTE = (*_OKABE_ITO, "#AA4499", "#44AA99", "#999933", "#CC6677")
DASHES = ([1, 0], [7, 3], [2, 3])
PLAIN, SHIFTED = PALETTE[0], PALETTE[1]
"""The colours of clients without a shift and with one."""


def palette(runs: list[Run]) -> dict[str, str]:
    """A colour for each method label in the runs of a page."""
    labels = dict.fromkeys(label for run in runs for label in run.titles)
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(labels)}
