# SPDX-License-Identifier: Apache-2.0
"""Operators of ``torch_npu``: each against its documented formula, and docs/npu-operators.md names all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunPython, of_today

ROOT = Path(__file__).parents[2]
PATH = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'packages' / 'npu')!r}, {str(ROOT / 'tools')!r}]\n"


def _run(run_python: RunPython, source: str) -> str:
    return run_python(PATH + source, OUTBOARD_PROFILE="npu")


#: How each operator is called, eagerly and compiled, in eight programs, of which each day has one.
PROGRAMS = [f"{how!r}, {part}, 8" for how in ("eager", "compiled") for part in of_today(range(8), 8)]


@pytest.mark.parametrize("how", PROGRAMS)
def test_each_operator_computes_its_formula(how: str, run_python: RunPython) -> None:
    _run(run_python, f"from tests.profiles import npu_operators; npu_operators.main({how})")


def test_each_operator_has_its_published_arguments(run_python: RunPython) -> None:
    _run(
        run_python,
        """
import inspect, torch, torch_npu
from torch_npu import operators

for name, function in operators.FUNCTIONS.items():
    ours = inspect.signature(function).parameters
    schema = torch._C.parse_schema(operators.schemas()[name][-1 if "out" in ours else 0])
    for argument, parameter in zip(schema.arguments, ours.values(), strict=True):
        assert argument.name == parameter.name, (name, argument.name)
        assert argument.kwarg_only == (parameter.kind is parameter.KEYWORD_ONLY), (name, argument.name)
        default = argument.default_value if argument.has_default_value() else parameter.empty
        assert default == parameter.default, (name, argument.name, default)
    assert getattr(torch_npu, name) is function and name in torch_npu.__all__
""",
    )


def test_the_page_names_every_operator(run_python: RunPython) -> None:
    made = _run(run_python, "import npu_names; print(npu_names.page(), end='')")
    assert (ROOT / "docs" / "npu-operators.md").read_text() == made, "tools/npu_names.py writes the page anew"


def test_what_is_not_there_says_where_the_reason_is(run_python: RunPython) -> None:
    _run(
        run_python,
        """
import torch_npu
try:
    torch_npu.npu_mla_prolog
except AttributeError as error:
    assert "docs/npu-operators.md" in str(error), error
else:
    raise AssertionError
""",
    )


def test_what_operators_do_not_take_raises(run_python: RunPython) -> None:
    _run(
        run_python,
        """
import pytest, torch, torch_npu

x, rows, mask = torch.randn(1, 2, 4, 8, device="npu"), torch.randn(4, 2, 8, device="npu"), torch.ones(4, 4).bool().npu()
slots, numbers = torch.arange(4).npu(), torch.ones(2, 2, dtype=torch.int32, device="npu")
attend, infer = torch_npu.npu_fusion_attention, torch_npu.npu_prompt_flash_attention
cache = torch.zeros(2, 4, 2, 8, device="npu")
scores, k, p = torch.randn(2, 8, device="npu"), numbers[0], torch.ones(2, device="npu")
one = torch.ones(2, 1, device="npu")
wrong = [
    (ValueError, attend, (x, x, x, 2, "BNSD"), {"atten_mask": mask, "sparse_mode": 9}),
    (ValueError, attend, (x, x, x, 2, "BNSD"), {"atten_mask": mask, "sparse_mode": 6}),
    (ValueError, attend, (rows, rows, rows, 2, "TND"), {}),
    (NotImplementedError, attend, (x, x, x, 2, "SBND"), {}),
    (NotImplementedError, attend, (x, x, x, 2, "BNSD"), {"sink": one}),
    (NotImplementedError, torch_npu.npu_fusion_attention_v2, (x, x, x, 2, "BNSD"), {"pse_type": 2}),
    (ValueError, torch_npu.npu_fusion_attention_v2, (x, x, x, 2, "BNSD"), {"key_rope": x}),
    (ValueError, torch_npu.npu_fusion_attention_grad, (x, x, x, x, 2, "BNSD"), {}),
    (NotImplementedError, torch_npu.npu_fusion_attention_grad, (x, x, x, x, 2, "BNSD"), {"keep_prob": 0.9}),
    (ValueError, infer, (x, x, x), {"num_heads": 2, "input_layout": "BNSD", "sparse_mode": 2}),
    (ValueError, torch_npu.npu_ring_attention_update, (rows,) * 6, {"input_layout": "TND"}),
    (ValueError, torch_npu.npu_scatter_pa_kv_cache, (rows, rows, cache, cache, slots), {"cache_mode": "NZ"}),
    (NotImplementedError, torch_npu.npu_scatter_pa_cache, (rows, slots), {"key_cache": cache, "seq_lens": slots}),
    (ValueError, torch_npu.npu_advance_step_flashattn, (slots, one, *[slots] * 3, numbers, 4, 5, 2), {}),
    (NotImplementedError, torch_npu.npu_moe_re_routing, (rows, numbers), {"idx_type": 1}),
    (ValueError, torch_npu.npu_moe_token_unpermute_with_routing_map, (scores, k, [2, 8]), {"probs": scores}),
    (ValueError, torch_npu.npu_top_k_top_p_sample, (scores, k, p), {"post_sample": "sample"}),
    (NotImplementedError, torch_npu.npu_top_k_top_p_sample, (scores, k, p, numbers), {"post_sample": "multiNomial"}),
    (ValueError, torch_npu.npu_batch_gather_matmul, (scores, scores, scores, k), {}),
    (NotImplementedError, torch_npu.npu_scatter_list, ([scores], k[:1], scores[None]), {"reduce": "add"}),
    (NotImplementedError, torch_npu.npu_fused_cross_entropy_loss_with_max_sum, (p, p, p), {"label_smoothing": 0.1}),
]
for error, function, arguments, keywords in wrong:
    with pytest.raises(error):
        function(*arguments, **keywords)
""",
    )
