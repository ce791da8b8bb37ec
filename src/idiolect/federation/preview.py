"""What a site would send, and to whom, without sending anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.method import Down
from idiolect.core.version import __version__, digest
from idiolect.data.custom.texts import Reading
from idiolect.federation.data.agreement import agree, common_form, plain
from idiolect.federation.data.backbone import Backbone
from idiolect.federation.data.samples import SiteFiles, alone, division_of, reading_of, sums
from idiolect.federation.messages import Refusal, by_path, pack
from idiolect.federation.server.study import look, study_for
from idiolect.federation.site.features import SiteFeatures
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.trust.kits import SiteKit
from idiolect.federation.trust.policy import Policy
from idiolect.simulation.client_runner import ClientRunner
from idiolect.simulation.rounds import first_state
from idiolect.studies import Study
from idiolect.studies.backbones import is_frozen, normalise_of


def preview(
    kit: SiteKit, samples: SiteFiles, policy: Policy, study: Path | None, state: Path, key: Path | None = None
) -> Iterator[str]:
    """Lines of text: to whom, what is said of the samples, and with a study what each round's upload would be.

    The uploads are made from this site's samples alone, from the first state of each method. The features that a frozen
    backbone makes for this are kept in the state folder, and nothing else is.

    Args:
        kit: the site's.
        samples: the site's.
        policy: the site's.
        study: its file; None says nothing of uploads.
        state: the folder of the personal state.
        key: the file of the key that encrypts it, made if it does not exist; None for none.

    Raises:
        InputError: the study cannot be read, or the policy does not allow it.
    """
    yield f"To: {kit.server}, whose certificate is signed by {kit.folder / 'ca.pem'}"
    yield f"From: site {kit.site}, client {kit.number} of {kit.name}"
    yield f"By: idiolect {__version__}, whose files have the digest {digest()}"
    asked = None if study is None else look(study, kit.name)
    task = "classification" if asked is None else asked.task  # the study decides
    group = None if asked is None else asked.group_column
    offer = samples.offer(task, Reading() if asked is None else reading_of(asked), group)
    values = plain(offer)
    size = len(pack({"offer": values}))
    yield f"First, {size:,} bytes about the samples, by which features and classes are agreed on:"
    yield json.dumps(values, ensure_ascii=False)
    inputs, classes = common_form({kit.site: offer, "others": offer}, task)
    share = 0.0 if asked is None else asked.protocol.validation
    division = {} if asked is None else division_of(asked)
    ready = samples.encode(inputs, classes, 0, kit.number, look=False, labels=offer.targets, **division)
    if asked is not None and is_frozen(asked):
        _check(policy, asked, study)
        ready = SiteFeatures(state, Vault.of(state, key)).of(asked, ready)
    own = sums(ready, len(classes))
    measured = "F1, loss" if offer.labels else "errors, R2" if offer.targets else "accuracy, loss"
    yield f"Then, {len(pack({}, by_path('sums', own._asdict()))):,} bytes of counts and sums for the normalisation:"
    yield from _rows(by_path("sums", own._asdict()))
    parts = f"test samples{' and validation samples' * bool(share)}"
    yield f"Numbers of its own {parts} ({measured}, ...): {'yes' if policy.evaluate else 'no, by the policy'}"
    if study is None:
        yield "For the uploads of each round give the study, as its operator has it."
        return
    whole = study_for(study, kit.name)
    _check(policy, whole, study)
    others = [f"client {k}" for k in range(kit.number)]  # who have nothing, as far as this site knows
    how = normalise_of(whole)
    agreement = agree(
        inputs,
        classes,
        {kit.site: own},
        how,
        Backbone.of(whole),
        frozen=is_frozen(whole),
        predicted=offer.targets,
        labels=offer.labels,
    )
    agreement = agreement.among([*others, kit.site])
    if whole.secure_aggregation:
        yield "The uploads leave under masks, so that the server learns their sum over sites alone."
    for use in whole.methods:
        runner = ClientRunner(Study.job(whole, use, whole.seeds[0], alone(ready, agreement, kit.number, whole.name)))
        method = runner.method
        down = method.send(method.init_server(keys.start(0)), torch.tensor([kit.number]))
        client = first_state(method, whole.seeds[0], kit.number)
        [outcome] = runner.run("local", 1, [kit.number], Down(down.shared, down.own), [client])
        arrays = by_path("value", outcome.up.value) | by_path("weight", outcome.up.weight)  # type: ignore[union-attr]
        size = len(pack({}, arrays))
        yield f"{use.label}: {size:,} bytes in each of up to {whole.rounds} rounds:"
        yield from _rows(arrays)
        try:
            policy.fits(size)
        except Refusal as error:
            yield f"  refused by the policy: {error}"


def _check(policy: Policy, study: Study, path: Path | None) -> None:
    """Raise InputError unless the policy allows a study."""
    try:
        policy.check(study)
    except Refusal as error:
        raise InputError(f"the policy does not allow {path}: {error}") from None


def _rows(arrays: dict[str, torch.Tensor]) -> Iterator[str]:
    for path, a in arrays.items():
        kind = str(a.dtype).removeprefix("torch.")
        yield f"  {path:<40} {kind} {tuple(a.shape)}  {a.numel() * a.element_size():,} bytes"
