# SPDX-License-Identifier: Apache-2.0
"""Traces of Dynamo's: where they begin, and those of earlier processes."""
