"""How MKL, which multiplies fp32 matrices for PyTorch on x86, divides its work on AMD's CPUs."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path


def divide_evenly(cpuinfo: Path = Path("/proc/cpuinfo"), environ: MutableMapping[str, str] | None = None) -> None:
    """Ask MKL for `MKL_CBWR=AUTO` on an AMD CPU under Linux, unless the reader has set it, be it to nothing.

    Left to itself, MKL took about twice as long over 2 rows as over 1 on two cores of a Zen 3. Where its sums are to
    come out the same in each run, it takes the same instructions but divides the work beforehand: 1.1 times. It looks
    once, at its first product, and `import speclib` comes before that. cpuinfo, environ: other ones, for tests.
    Source: oneMKL Developer Guide, 'Specifying Code Branches'. Taught in notebook 02_verify_cost, section 'Other
    machines'; both records are in results/.
    """
    environ = os.environ if environ is None else environ
    try:
        with cpuinfo.open(encoding="utf-8") as lines:
            # Of the first core: the whole file, on a machine of hundreds, would be felt in each start.
            vendor = next((line for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return
    if "AuthenticAMD" in vendor:
        environ.setdefault("MKL_CBWR", "AUTO")
