"""How MKL, which multiplies fp32 matrices for PyTorch on x86, divides its work on AMD's CPUs."""

from __future__ import annotations

import itertools
import os
from collections.abc import MutableMapping
from pathlib import Path


def divide_evenly(cpuinfo: Path = Path("/proc/cpuinfo"), environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask MKL for `MKL_CBWR=AUTO` on AMD CPUs without bf16 instructions, unless it is set already, be it to nothing.

    Such a CPU runs the models in fp32. Left to itself, MKL took 1.65 times as long over two tokens as over one on two
    cores of a Zen 3. Where its sums are to come out the same in each run, it takes the same instructions but divides
    the work beforehand: 1.10 times (the two sweeps of that machine in results/). It looks once, at its first product,
    and `import speclib` comes before that. cpuinfo, environ: other ones, for tests. Under Linux only.
    Source: oneMKL Developer Guide, 'Specifying Code Branches'. Taught in notebook 02_verify_cost, section 'Other
    machines'.
    """
    try:
        with cpuinfo.open(encoding="utf-8") as lines:
            # The whole file, on a machine of hundreds of cores, would be felt in each start.
            first_core = "".join(itertools.takewhile(str.strip, lines))
    except OSError:
        return
    if "AuthenticAMD" in first_core and "avx512_bf16" not in first_core:
        environ.setdefault("MKL_CBWR", "AUTO")
