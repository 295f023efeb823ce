# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers: chains of foreach operators and PyTorch's fused updates as graphs."""
