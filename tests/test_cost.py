"""What a step costs, counted exactly; and models of which only the shape is known."""

from __future__ import annotations

import json
import types

import pytest
import torch
from tiny import small_shape, tiny_llama

from speclib import cost, pairs, roofline, shapes
from speclib.context import Context
from speclib.pairs import PairError

BF16 = torch.bfloat16


# --- counted ------------------------------------------------------------------------------------------------


def test_the_8b_reads_15_of_its_16_gb_and_the_ceiling_is_18_tokens_per_second():
    llama = shapes.build("llama-8b", BF16, "meta")
    assert llama.num_parameters() == 8_030_261_248
    assert cost.model_bytes(llama) == 16_060_522_496
    assert cost.step_bytes(llama) == 16_060_522_496 - 2 * 128_256 * 4096
    assert cost.ceiling_tokens_per_second(cost.step_bytes(llama), 273e9) == pytest.approx(18.2, abs=0.05)
    assert cost.ceiling_tokens_per_second(cost.model_bytes(llama), 273e9) == pytest.approx(17.0, abs=0.05)
    assert cost.cache_bytes(llama, 1) == 131_072


@pytest.mark.parametrize("name, parameters, tied", [
    ("llama-1b", 1_235_814_400, True), ("qwen-7b", 7_615_616_512, False), ("qwen-0.5b", 494_032_768, True),
    ("smol", 134_515_008, True), ("smol-draft", 18_138_880, False),
])  # fmt: skip
def test_every_shape_has_its_models_parameters(name, parameters, tied):
    model = shapes.build(name, BF16, "meta")
    assert model.num_parameters() == parameters
    assert cost.model_bytes(model) == sum(p.numel() * p.element_size() for p in model.parameters()) == 2 * parameters
    assert (cost.step_bytes(model) == cost.model_bytes(model)) == tied


def test_c_from_bytes_of_the_llama_pair_is_a_sixth():
    small, large = (cost.step_bytes(shapes.build(n, BF16, "meta")) for n in ("llama-1b", "llama-8b"))
    assert small / large == pytest.approx(0.165, abs=0.001)


def test_flops_are_two_for_each_weight_that_is_read_and_four_for_each_look_back():
    model = tiny_llama()
    read = model.num_parameters() - model.get_input_embeddings().weight.numel()
    assert cost.flops_per_token(model) == 2 * read
    assert cost.flops_per_token(model, 10) - cost.flops_per_token(model) == 4 * 2 * 4 * 8 * 10
    assert cost.step_bytes(model) == 4 * read


def test_the_cache_of_a_real_context_has_the_bytes_that_are_counted():
    context = Context(tiny_llama())
    context.feed([1, 2, 3])
    held = sum(t.numel() * t.element_size() for layer in context._cache.layers for t in (layer.keys, layer.values))
    assert cost.cache_bytes(context.model, 3) == held


def test_the_roofline_bends_at_the_ridge():
    size, flops, speed, peak = 15e9, 15e9, 273e9, 125e12
    ridge = cost.ridge_point(speed, peak)
    assert ridge == pytest.approx(457.9, abs=0.1)
    assert cost.roofline(1, size, flops, speed, peak) == cost.roofline(400, size, flops, speed, peak) == size / speed
    assert cost.roofline(ridge, size, flops, speed, peak) == pytest.approx(size / speed)
    assert cost.roofline(2 * ridge, size, flops, speed, peak) == pytest.approx(2 * size / speed)
    for bad in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="must be positive"):
            cost.roofline(1, 1, 1, *bad)


def test_presets_say_where_they_come_from_and_what_is_estimated():
    assert (cost.SPARK.bandwidth, cost.H200.bandwidth, cost.H200.peak) == (273e9, 4.8e12, 989e12)
    assert "estimated" in cost.SPARK.source and "data sheet" in cost.H200.source


# --- shapes -------------------------------------------------------------------------------------------------


def test_names_of_shapes():
    assert shapes.names("llama") == ("llama-8b", "llama-1b")
    assert shapes.names("smol-draft") == ("smol-draft",)
    assert shapes.names("qwen-7b, smol") == ("qwen-7b", "smol")
    for bad in ("llama-9b", "smol,smol,smol", "", "smol,"):
        with pytest.raises(ValueError, match=r"there is no shape.*choose smol, llama"):
            shapes.names(bad)
    with pytest.raises(ValueError, match=r"llama names two shapes: take llama-8b or llama-1b"):
        shapes.build("llama", BF16, "meta")


def test_every_preset_has_the_shapes_of_both_its_models():
    for preset in pairs.PRESETS:
        assert len(shapes.names(preset)) == len(set(shapes.names(preset))) == 2
    real = json.loads((pairs.SMOL_DRAFT.path / "config.json").read_text(encoding="utf-8"))
    assert shapes.SHAPES["smol-draft"][1].items() <= real.items()


def test_a_built_shape_runs_and_leaves_the_random_state_alone(monkeypatch):
    small_shape(monkeypatch)
    before = torch.random.get_rng_state()
    model = shapes.build("smol", BF16, "cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.dtype == BF16 and not model.training
    assert Context(model).feed([1, 2, 3]).isfinite().all()


def test_a_shape_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(shapes, "free_memory", lambda device: 10**9)
    with pytest.raises(PairError, match=r"llama-8b needs 16\.1 GB, and 1\.0 GB are free on cpu"):
        shapes.build("llama-8b", BF16, "cpu")


@pytest.mark.parametrize("ask", [
    cost.bandwidth, lambda device: cost.peak_flops(BF16, device), lambda device: shapes.build("smol", BF16, device),
])  # fmt: skip
def test_a_device_that_is_not_there_is_one_sentence(ask, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device, word in (("cuda", "there is no cuda on this machine"), ("abacus", "there is no device 'abacus'")):
        with pytest.raises(ValueError, match=word) as caught:
            ask(device)
        assert "\n" not in str(caught.value)


def test_unified_memory_is_counted_by_the_system(monkeypatch):
    import psutil

    device = torch.device("cuda", 0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=77))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (11, 22))
    for integrated, free in ((True, 77), (False, 11)):
        properties = types.SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d, p=properties: p)
        assert roofline.free_memory(device) == free
    assert roofline.free_memory(torch.device("cpu")) == 77
