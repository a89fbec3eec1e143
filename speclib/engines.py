"""The same pair behind someone else's server: the command that starts vLLM or SGLang with matching speculation.

Source: vLLM's documentation, "Speculative Decoding" (`--speculative-config`); SGLang's, "Speculative Decoding".
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from speclib import pairs
from speclib.weights import Absent, Folder, Hub, cache_dir
from speclib.wheel import Wheel

ENGINES = ("vllm", "sglang")
DRAFTERS = ("model", "lookup", "eagle", "none")
MAX_NGRAM = 3  # as `drafters.lookup_draft`
# Preset → an EAGLE-3 head that was trained for its target.
EAGLE = {"llama": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}


def command(engine: str, pair: str, drafter: str, k: int, host: str, port: int) -> list[str]:
    """The words of the command that serves a pair's target with an engine; downloads nothing.

    A draft with a cut output matrix is written once more, as the plain Llama that other engines know.

    pair: as `pairs.load`. drafter: model, lookup, eagle or none. k: drafts per round. vLLM drafts greedily unless it
    is told otherwise, so under sampling it keeps fewer drafts than speclib, which draws them from q.
    ValueError: no such engine or drafter; no EAGLE head for this target.
    """
    if engine not in ENGINES:
        raise ValueError(f"there is no engine {engine!r}: choose speclib, {', '.join(ENGINES)}")
    if drafter not in DRAFTERS:
        raise ValueError(f"{engine} has no drafter {drafter!r}: choose {', '.join(DRAFTERS)}")
    target, draft = names(pair)
    if drafter == "model":
        if draft is None:
            raise ValueError(f"the pair {pair} has no draft model: choose --drafter lookup")
        draft = plain_draft(draft)
    if drafter == "eagle":
        if pair not in EAGLE:
            raise ValueError(f"no EAGLE head is known for the pair {pair}: choose --pair {' or '.join(EAGLE)}")
        draft = EAGLE[pair]
    if k < 1 and drafter != "none":
        raise ValueError(f"{engine} needs at least one draft per round, not {k}: choose --drafter none")
    # The name that speclib's own server gives the model, so that one client, one scoreboard can ask either.
    known = pairs.PRESETS[pair].target.label if pair in pairs.PRESETS else target
    where = ["--served-model-name", known, "--host", host, "--port", str(port)]
    if engine == "vllm":
        config = {
            "model": {"method": "draft_model", "model": draft, "num_speculative_tokens": k},
            # Without a least length vLLM looks for the longest only.
            "lookup": {"method": "ngram", "num_speculative_tokens": k}
            | {"prompt_lookup_min": 1, "prompt_lookup_max": MAX_NGRAM},
            "eagle": {"method": "eagle3", "model": draft, "num_speculative_tokens": k},
        }.get(drafter)
        return ["vllm", "serve", target, *where, *(["--speculative-config", json.dumps(config)] if config else [])]
    # A chain of k drafts: one branch a step, and the text's last token is verified with them.
    chain = ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    chain += ["--speculative-num-draft-tokens", str(k + 1)]
    more = {
        "model": ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(draft), *chain],
        "lookup": ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(k + 1)],
        "eagle": ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft), *chain],
        "none": [],
    }[drafter]
    return ["python", "-m", "sglang.launch_server", "--model-path", target, *where, *more]


def names(pair: str) -> tuple[str, str | None]:
    """What another server calls the two models: hub names, or folders. ValueError: no such pair, not fetched."""
    state = pairs.status(pair)
    if pair not in pairs.PRESETS:
        target, _, draft = pair.partition(",")
        return target.strip(), draft.strip()
    preset = pairs.PRESETS[pair]
    if isinstance(preset.target, Wheel) and not state.target_ready:
        raise ValueError(f"the target of {pair} is not on this machine: {state.target_remedy}")
    return str(_where(preset.target)), None if isinstance(preset.draft, Absent) else str(_where(preset.draft))


def _where(source: pairs.Source) -> Path | str:
    return source.label if isinstance(source, Hub) else source.path if isinstance(source, Folder) else source.folder


def plain_draft(draft: str) -> str:
    """The folder of a draft that other servers can load: itself, or the distilled draft as a plain Llama, made once."""
    folder = Path(draft)
    config = folder / "config.json"
    if not config.is_file() or json.loads(config.read_text(encoding="utf-8")).get("model_type") != "speclib_draft":
        return draft
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
    out = cache_dir() / f"plain-draft-{digest}"
    if not out.is_dir():
        from speclib.draft import DraftForCausalLM, as_llama

        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=out.parent))
        try:
            as_llama(DraftForCausalLM.from_pretrained(folder, dtype="auto")).save_pretrained(beside)
            for file in [*folder.glob("*token*"), *folder.glob("chat_template*")]:
                shutil.copy(file, beside)
            beside.rename(out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return str(out)


def start(engine: str, pair: str, drafter: str, k: int, host: str, port: int) -> int:
    """Run vLLM until it ends, if it is installed, and return its exit status; otherwise print the command."""
    words = command(engine, pair, drafter, k, host, port)
    print(shlex.join(words), flush=True)
    # A notebook's kernel may not have its own environment on the PATH.
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    program = shutil.which("vllm", path=places) if engine == "vllm" else None
    if not program:
        print(f"(not run: {'start it where SGLang is installed' if engine == 'sglang' else 'vllm is not installed'})")
        return 0
    try:
        return subprocess.run([program, *words[1:]], check=False).returncode
    except KeyboardInterrupt:  # vLLM has had it, too
        return 130
