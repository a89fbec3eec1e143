"""On AMD CPUs MKL is asked to divide its work evenly, before its first product, unless it has been asked already."""

import os
import subprocess
import sys

import pytest

from speclib import mkl

AMD, INTEL, ARM = (f"processor\t: 0\n{line}" for line in ("vendor_id\t: AuthenticAMD", "vendor_id\t: GenuineIntel", ""))


@pytest.mark.parametrize(
    ("cpuinfo", "before", "after"),
    [
        (AMD, {}, {"MKL_CBWR": "AUTO"}),
        (AMD, {"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "COMPATIBLE"}),
        (AMD, {"MKL_CBWR": ""}, {"MKL_CBWR": ""}),
        (INTEL, {}, {}),
        (ARM, {}, {}),
        (None, {}, {}),
    ],
    ids=["AMD", "set by the reader", "set to nothing", "Intel", "Arm", "not Linux"],
)
def test_it_is_asked_on_amd_alone_and_never_overruled(tmp_path, cpuinfo, before, after):
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    mkl.divide_evenly(file, before)
    assert before == after


def test_mkl_hears_of_it_although_torch_was_imported_first():
    """What it heard stands in its own log."""
    code = "import torch, os; import speclib; os.environ['MKL_CBWR'] = 'AUTO'; torch.ones(8, 8) @ torch.ones(8, 8)"
    env = os.environ | {"MKL_VERBOSE": "1", "MKL_CBWR": ""}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    if "MKL_VERBOSE" not in said:
        pytest.skip("this PyTorch has no MKL")
    assert "CNR:AUTO" in said
