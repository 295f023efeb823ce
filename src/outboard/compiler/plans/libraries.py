# SPDX-License-Identifier: Apache-2.0
"""Which operators a driver's library may carry out, whole."""

#: Operators that libraries are made for.
LIBRARY_OPERATORS = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::dot",
        "aten::mv",
        "aten::addmv",
        "aten::linear",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_scaled_dot_product_attention_math",
        "aten::scaled_dot_product_attention",
    }
)
