# SPDX-License-Identifier: Apache-2.0
"""The compiler: an operator or an FX graph in, a :class:`~outboard.compiler.plans.plan.Plan` out.

Importing this package imports neither Inductor nor sympy: what the disk cache holds is found without them.
"""
