# SPDX-License-Identifier: Apache-2.0
"""The profile ``npu``: what users of Ascend's extension and of the PyTorch Backend Project write."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.profiles.pages import code_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "npu"


def _run(run_python: RunPython, source: str, **variables: str) -> str:
    """Runs a program under the profile, with the package ``torch_npu`` importable."""
    prefix = f"import sys; sys.path.insert(0, {str(PACKAGE)!r})\n"
    return run_python(prefix + textwrap.dedent(source), **{"OUTBOARD_PROFILE": "npu", **variables})


def _listed() -> dict[str, list[str]]:
    """The lines of the list, by section."""
    sections: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "api-npu.txt").read_text().splitlines():
        if (heading := re.fullmatch(r"\[(\w+)\]", line)) is not None:
            current = sections.setdefault(heading[1], [])
        elif line and not line.startswith("#"):
            current.append(line)
    return sections


def test_each_name_of_the_list_has_its_signature(run_python: RunPython) -> None:
    _run(
        run_python,
        f"""
        import ast, inspect, operator, torch
        listed = {_listed()!r}
        #: Other ways to say the same: the current device, and the first dtype that autocast supports.
        same = {{"'npu'": None, "torch.float16": None}}

        def check(line):
            name, parenthesis, arguments = line.partition("(")
            there = operator.attrgetter(name)(torch.npu)
            if not parenthesis:
                return
            wanted = inspect.signature(eval("lambda " + arguments.removesuffix(")") + ": None", {{"torch": torch}}))
            found = list(inspect.signature(there).parameters.values())
            for position, parameter in enumerate(wanted.parameters.values()):
                if parameter.kind is parameter.VAR_KEYWORD:
                    continue
                ours = found[position]
                assert ours.name == parameter.name, (line, found)
                default = same.get(repr(parameter.default), parameter.default)
                assert ours.default == default, (line, ours.default)
            for extra in found[len(wanted.parameters):]:
                assert extra.default is not extra.empty or extra.kind is extra.VAR_KEYWORD, (line, extra)

        for section in ("here", "said", "refused"):
            for line in listed[section]:
                check(line)
        assert not [name for name in listed["absent"] if hasattr(torch.npu, name)]
        for name in listed["refused"]:
            try:
                getattr(torch.npu, name)()
            except NotImplementedError as error:
                assert f"torch.npu.{{name}} is not there with Outboard: " in str(error)
            else:
                raise AssertionError(name)
        """,
    )


def test_what_has_no_effect_is_said_once(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import warnings, torch, torch_npu
        x = torch.ones(2).npu()
        calls = {
            "set_compile_mode": lambda: torch.npu.set_compile_mode(jit_compile=False),
            "set_option('ACL_DEBUG_DIR')": lambda: torch.npu.set_option({"ACL_DEBUG_DIR": "/tmp/anywhere"}),
            "set_aoe": lambda: torch.npu.set_aoe("/tmp/anywhere"),
            "set_mm_bmm_format_nd(False)": lambda: torch.npu.set_mm_bmm_format_nd(False),
            "init_dump": torch.npu.init_dump,
            "get_npu_overflow_flag": torch.npu.get_npu_overflow_flag,
            "config.allow_internal_format": lambda: setattr(torch.npu.config, "allow_internal_format", True),
            "matmul.allow_hf32": lambda: setattr(torch.npu.matmul, "allow_hf32", True),
            "conv.allow_hf32": lambda: setattr(torch_npu.npu.conv, "allow_hf32", True),
            "enable_deterministic_with_backward": lambda: torch.npu.enable_deterministic_with_backward(x),
            "SyncLaunchStream": torch.npu.SyncLaunchStream,
            "set_task_queue_enable": lambda: torch.npu.set_task_queue_enable(2),
            "use_compatible_impl": lambda: torch.npu.use_compatible_impl(True),
            "set_op_timeout_ms": lambda: torch.npu.set_op_timeout_ms(1000),
            "set_device_limit": lambda: torch.npu.set_device_limit(0, cube_num=1, vector_num=1),
            "set_stream_limit": lambda: torch.npu.set_stream_limit(torch.npu.current_stream(), 1, 1),
            "super_kernel_scope_begin": torch.npu.super_kernel_scope_begin,
            "register_npu_graph_handler": lambda: torch.npu.register_npu_graph_handler("a")(type(x)),
        }
        for name, call in calls.items():
            for expected in (1, 0):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    call()
                assert len(said) == expected, (name, [str(one.message) for one in said])
                assert not said or name in str(said[0].message), (name, str(said[0].message))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.npu.config.allow_internal_format = False
            torch.npu.conv.allow_hf32 = False
            torch.npu.set_mm_bmm_format_nd(True)
        assert torch.npu.get_mm_bmm_format_nd() and torch.npu.is_jit_compile_false()
        assert torch.npu.get_task_queue_enable() == 2 and torch.npu.are_compatible_impl_enabled()
        units = torch.npu.get_device_properties().multi_processor_count
        limits = {"cube_core_num": units, "vector_core_num": units}
        assert torch.npu.get_device_limit(0) == torch.npu.get_stream_limit(torch.npu.current_stream()) == limits
        torch.npu.reset_stream_limit(torch.npu.current_stream())
        torch.npu.super_kernel_scope_end()
        torch.npu.empty_virt_addr_cache()
        assert torch.npu.matmul.allow_hf32 is False and torch.npu.get_npu_overflow_flag() is False
        try:
            torch.npu.set_option([])
        except TypeError:
            pass
        else:
            raise AssertionError
        """,
    )


def test_variables_are_honoured_or_named(run_python: RunPython) -> None:
    out = _run(
        run_python,
        """
        import os, torch
        print(os.environ["OUTBOARD_LAUNCH_BLOCKING"], torch.npu.get_device_capability())
        """,
        ASCEND_LAUNCH_BLOCKING="1",
        TORCH_NPU_DEVICE_CAPABILITY="8.0",
    )
    assert out == "1 (8, 0)\n"
    out = run_python(
        "import torch; print(torch.ones(1).npu())",
        check=False,
        OUTBOARD_PROFILE="npu",
        ASCEND_RT_VISIBLE_DEVICES="0",
        PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:128",
    )
    assert (
        out.count("ASCEND_RT_VISIBLE_DEVICES has no effect") == out.count("PYTORCH_NPU_ALLOC_CONF has no effect") == 1
    )
    assert "tensor([1.], device='npu:0')" in out and "Outboard could not be loaded" not in out


def test_streams_events_memory_and_seeds(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch, torch_npu
        from torch_npu.npu import Event, Stream
        assert torch_npu.npu is torch.npu and torch.npu.is_available() and torch.npu.device_count() == 1
        torch.npu.set_device("npu:0")
        x = torch.randn(64, 64).npu()
        assert x.is_npu and x.device == torch.device("npu", 0) and isinstance(x, torch.npu.FloatTensor)

        stream, start, end = Stream(), Event(enable_timing=True), Event(enable_timing=True)
        with torch.npu.stream(stream):
            stream.wait_stream(torch.npu.default_stream())
            start.record()
            y = x @ x
            end.record()
        torch.npu.current_stream().wait_event(end)
        torch.npu.synchronize()
        assert start.elapsed_time(end) >= 0 and end.query() and stream.query()
        torch.testing.assert_close(y.cpu(), x.cpu() @ x.cpu(), rtol=1e-4, atol=1e-4)

        assert torch.npu.memory_allocated() > 0
        assert torch.npu.memory_stats_as_nested_dict()["allocated"]["current"] == torch.npu.memory_allocated()
        assert torch.npu.get_allocator_backend() == "native"
        torch.npu.host_empty_cache(), torch.npu.ipc_collect(), torch.npu.empty_cache()

        torch.npu.manual_seed_all(7)
        state = torch.npu.get_rng_state("npu")
        first = torch.rand(5, device="npu")
        torch.npu.random.set_rng_state_all([state])
        assert torch.npu.initial_seed() == 7 and torch.equal(torch.rand(5, device="npu"), first)

        torch.npu.set_sync_debug_mode("error")
        try:
            first.sum().item()
        except RuntimeError as error:
            assert "called a synchronizing operation" in str(error)
        else:
            raise AssertionError
        torch.npu.set_sync_debug_mode(0)
        assert torch.npu.get_sync_debug_mode() == 0
        """,
    )


def test_mixed_precision_trains(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch, torch_npu
        from torch_npu.npu.amp import GradScaler, autocast
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).npu()
        optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=0.02)
        inputs, wanted = torch.randn(32, 8).npu(), torch.randn(32, 1).npu()
        losses = []
        for scaler in (GradScaler(growth_interval=2), GradScaler(init_scale=128.0, dynamic=False)):
            for _ in range(5):
                optimizer.zero_grad()
                with autocast():
                    output = model(inputs)
                    assert output.dtype == torch.float16
                    loss = torch.nn.functional.mse_loss(output.float(), wanted)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                optimizer.clip_grad_norm_fused_(10.0)
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
        assert losses[-1] < losses[0] and scaler.get_scale() == 128.0
        torch.npu.set_autocast_dtype(torch.bfloat16)
        assert torch.npu.get_autocast_dtype() == torch.bfloat16 and not torch.npu.is_autocast_enabled()
        assert torch.npu.utils.npu_check_overflow(torch.tensor([1.0, float("inf")]).npu())
        assert not torch.npu.utils.npu_check_overflow(3.0) and torch.npu.utils.is_support_inf_nan()
        """,
    )


def test_ranges_are_in_the_profile(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        mstx = torch.npu.mstx

        @mstx.mstx_range("decorated")
        def work():
            return torch.ones(3).npu() + 1

        with torch.profiler.profile() as profile:
            number = mstx.range_start("step")
            work()
            mstx.range_end(number)
            mstx.range_end(number)
            mstx.mark("here")
        names = {event.name for event in profile.events()}
        assert {"step", "decorated", "here"} <= names, names
        """,
    )


def test_graphs_are_captured_and_replayed(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        total = torch.zeros(4).npu()
        total += 1
        captured = torch.npu.NPUGraph()
        try:
            captured.replay()
        except RuntimeError as error:
            assert "capture_begin" in str(error)
        with torch.npu.graph(captured):
            total += 1
        assert torch.npu.current_stream() == torch.npu.default_stream()
        for _ in range(3):
            captured.replay()
        assert total.tolist() == [4.0] * 4
        captured.reset()
        with torch.npu.graph(captured, stream=torch.npu.Stream()):
            total *= 2
        captured.replay()
        assert total.tolist() == [8.0] * 4
        """,
    )


def test_the_profiler_is_pytorchs(run_python: RunPython, tmp_path: Path) -> None:
    out = _run(
        run_python,
        f"""
        import pathlib, torch, torch_npu
        experimental = torch_npu.profiler._ExperimentalConfig(
            aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
            profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
        )
        x = torch.ones(4, 4).npu()
        for config in (experimental, experimental):
            with torch_npu.profiler.profile(
                activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
                schedule=torch_npu.profiler.schedule(wait=0, warmup=0, active=1, repeat=1),
                on_trace_ready=torch_npu.profiler.tensorboard_trace_handler({str(tmp_path)!r}),
                record_shapes=True, profile_memory=True, experimental_config=config,
            ) as profile:
                x @ x
                profile.step()
        assert len(list(pathlib.Path({str(tmp_path)!r}).glob("*.json"))) == 2
        import torch_npu.contrib
        try:
            from torch_npu.contrib import transfer_to_npu
        except ImportError as error:
            print(error)
        """,
    )
    assert "write npu where the program says cuda" in out


def test_attention_in_every_layout(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch, torch_npu
        import torch.nn.functional as F
        torch.manual_seed(0)
        close = lambda a, b: torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)

        q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
        left_out = torch.rand(6, 9) < 0.3
        reference = lambda **more: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True, **more)
        layouts = {
            "BNSD": (lambda t: t, lambda t: t),
            "BSND": (lambda t: t.transpose(1, 2), lambda t: t.transpose(1, 2)),
            "BSH": (lambda t: t.transpose(1, 2).flatten(2), lambda t: t.unflatten(-1, (4, 8)).transpose(1, 2)),
            "SBH": (lambda t: t.permute(2, 0, 1, 3).flatten(2), lambda t: t.unflatten(-1, (4, 8)).permute(1, 2, 0, 3)),
        }
        for layout, (there, back) in layouts.items():
            ours = lambda **more: back(torch_npu.npu_fusion_attention(
                *(there(t).npu() for t in (q, k, v)), 4, layout, scale=0.3, **more)[0])
            close(ours(), reference())
            close(ours(atten_mask=left_out.npu()), reference(attn_mask=~left_out))
            corner = torch.ones(6, 9, dtype=torch.bool)
            close(ours(atten_mask=left_out.npu(), sparse_mode=2), reference(attn_mask=corner.tril()))
            close(ours(atten_mask=left_out.npu(), sparse_mode=3), reference(attn_mask=corner.tril(3)))
        for unknown, kind in (({"sparse_mode": 9}, ValueError), ({"sink": q.npu()}, NotImplementedError)):
            try:
                torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), 4, "BNSD", **unknown)
            except kind:
                pass
            else:
                raise AssertionError(unknown)
        """,
    )


def test_transformers_finds_the_npu(run_python: RunPython) -> None:
    pytest.importorskip("transformers", reason="the extra `demo` installs it")
    _run(
        run_python,
        """
        import torch, transformers
        import torch.nn.functional as F
        from transformers.utils import is_torch_npu_available
        assert is_torch_npu_available() and is_torch_npu_available(check_device=True)

        from transformers.integrations import npu_flash_attention as npu
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 5, 4, 8) for _ in range(3))
        heads_first = lambda t: t.transpose(1, 2)
        for causal in (False, True):
            expected = F.scaled_dot_product_attention(*map(heads_first, (q, k, v)), is_causal=causal)
            found = npu.npu_flash_attn_func(q.npu(), k.npu(), v.npu(), causal=causal)
            torch.testing.assert_close(heads_first(found.cpu()), expected, rtol=1e-4, atol=1e-5)
            ends = torch.tensor([0, 2, 5], dtype=torch.int32)
            flat = [t[0] for t in (q, k, v)]
            found = npu.npu_flash_attn_varlen_func(*(t.npu() for t in flat), ends.npu(), ends.npu(), causal=causal)
            for first, last in ((0, 2), (2, 5)):
                part = [t[first:last].transpose(0, 1) for t in flat]
                expected = F.scaled_dot_product_attention(*part, is_causal=causal).transpose(0, 1)
                torch.testing.assert_close(found[first:last].cpu(), expected, rtol=1e-4, atol=1e-5)
        """,
    )


def test_flash_attention_of_transformers_is_what_the_others_are(run_python: RunPython) -> None:
    pytest.importorskip("transformers", reason="the extra `demo` installs it")
    _run(
        run_python,
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=128, max_position_embeddings=64,
        )
        reference = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
        model = LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=torch.float32
        ).eval()
        model.load_state_dict(reference.state_dict())
        model.npu()
        words, mask = torch.randint(128, (2, 9)), torch.ones(2, 9, dtype=torch.long)
        mask[1, :4] = 0
        with torch.no_grad():
            expected = reference(words, attention_mask=mask).logits
            found = model(words.npu(), attention_mask=mask.npu()).logits.cpu()
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1, 4:], expected[1, 4:], rtol=1e-4, atol=1e-5)
        """,
    )


def test_transformers_finds_none_under_another_name(run_python: RunPython) -> None:
    pytest.importorskip("transformers", reason="the extra `demo` installs it")
    _run(
        run_python,
        """
        import warnings
        warnings.simplefilter("error")
        import torch, torch_npu
        from transformers.utils import is_torch_npu_available
        assert not is_torch_npu_available() and not is_torch_npu_available(check_device=True)
        assert not torch.npu.is_available() and torch_npu.npu.device_count() == 0
        from transformers.integrations import npu_flash_attention
        for ask, error in ((lambda: torch_npu.npu_swiglu, ImportError), (lambda: torch.npu.set_device, AttributeError)):
            try:
                ask()
            except error as raised:
                assert "Set OUTBOARD_PROFILE=npu" in str(raised), raised
            else:
                raise AssertionError
        """,
        OUTBOARD_PROFILE="ocl",
    )


@pytest.mark.parametrize("profile", ["npu", "ocl"])
def test_accelerate_finds_what_is_there(run_python: RunPython, profile: str) -> None:
    _run(
        run_python,
        f"""
        import torch
        from accelerate import Accelerator
        from accelerate.utils import is_npu_available
        assert is_npu_available() == is_npu_available(check_device=True) == {profile == "npu"}
        if is_npu_available():
            from transformers import TrainingArguments
            assert Accelerator().device.type == "npu"
            assert TrainingArguments("unused", report_to=[]).device == torch.device("npu:0")
        """,
        OUTBOARD_PROFILE=profile,
    )


def test_the_page_runs(run_python: RunPython) -> None:
    _run(run_python, code_of("profile-npu.md"))
