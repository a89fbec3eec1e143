"""On AMD CPUs MKL is asked to divide its work evenly, before its first product, unless it has been asked already."""

import os
import subprocess
import sys

import pytest

from speclib import mkl

CORE = "processor\t: {}\n{}\nflags\t\t: fpu avx2{}\n\n"
AMD, INTEL = "vendor_id\t: AuthenticAMD", "vendor_id\t: GenuineIntel"


@pytest.mark.parametrize(
    ("vendor", "flags", "before", "after"),
    [
        (AMD, "", {}, {"MKL_CBWR": "AUTO"}),
        (AMD, "", {"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "COMPATIBLE"}),
        (AMD, "", {"MKL_CBWR": ""}, {"MKL_CBWR": ""}),
        (AMD, " avx512_bf16", {}, {}),
        (INTEL, "", {}, {}),
        ("CPU implementer\t: 0x41", "", {}, {}),
        (None, "", {}, {}),
    ],
    ids=["AMD", "set by the reader", "set to nothing", "AMD with bf16", "Intel", "Arm", "not Linux"],
)
def test_it_is_asked_on_amd_alone_and_never_overruled(tmp_path, vendor, flags, before, after):
    file = tmp_path / "cpuinfo"
    if vendor:
        file.write_text("".join(CORE.format(core, vendor, flags) for core in range(2)))
    mkl.divide_evenly(file, before)
    assert before == after


def test_mkl_hears_of_it_although_torch_was_imported_first(tmp_path):
    """What it heard stands in its own log."""
    (tmp_path / "cpuinfo").write_text(CORE.format(0, AMD, ""))
    code = "import sys, pathlib, torch; from speclib import mkl; mkl.divide_evenly(pathlib.Path(sys.argv[1]))"
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"} | {"MKL_VERBOSE": "1"}
    command = [sys.executable, "-c", f"{code}; torch.ones(8, 8) @ torch.ones(8, 8)", str(tmp_path / "cpuinfo")]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    if "MKL_VERBOSE" not in said:
        pytest.skip("this PyTorch has no MKL")
    assert "CNR:AUTO" in said
