// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model_writer.h"

/// Whole models that tests begin with.
namespace samples {

using Size = outboard::ModelFile::Dimension;
constexpr Size kBatch{Size::kSymbol, 0};

/// y[i, j] = x[i, j] * w[j] for x of n rows and 3 columns; y is returned transposed, together with n.
inline ModelParts scale_columns() {
  using namespace outboard;
  PlanParts plan;
  plan.inputs = {Plan::kTensorInput, Plan::kTensorInput};
  plan.symbols = {wire::symbol(Symbol::kSize, 0, 0)};
  plan.guards = {PlanWriter().expr({{Expr::kSymbol, 0}, {Expr::kConst, 7}, {Expr::kNe, 0}})};  // n != 7
  plan.buffers = 3;
  plan.source =
      "__kernel void scale(__global const float* x, __global const float* w, __global float* y) {"
      "  long i = get_global_id(0); y[i] = x[i] * w[i % 3]; }";
  plan.entries = {"scale"};
  const wire::Code items{{Expr::kSymbol, 0}, {Expr::kConst, 3}, {Expr::kMul, 0}};
  const wire::Code bytes{{Expr::kSymbol, 0}, {Expr::kConst, 12}, {Expr::kMul, 0}};
  plan.steps = {wire::allocate(2, bytes),
                wire::launch(0, items, {wire::pointer(0), wire::pointer(1), wire::pointer(2)})};
  PlanWriter transposed;
  transposed.u32(2).u8(static_cast<uint8_t>(DType::kFloat32));
  transposed.u32(2).constant(3).symbol(0).u32(2).constant(1).constant(3).constant(0);
  plan.outputs = {wire::output(transposed), PlanWriter().u8(Output::kInt).symbol(0),
                  PlanWriter().u8(Output::kInput).u32(0)};

  ModelParts model;
  model.symbols = {ModelParts::symbol("x.0", 1, 8)};
  model.inputs = {ModelParts::argument("x", {kBatch, {Size::kFixed, 3}})};
  model.outputs = {ModelParts::argument("y", {{Size::kFixed, 3}, kBatch}),
                   ModelParts::argument("n", {}, DType::kInt64, true),
                   ModelParts::argument("same", {kBatch, {Size::kFixed, 3}})};
  model.weight = {1, 10, 100};
  model.plan_inputs = {ModelParts::from(ModelFile::PlanInput::kInput, 0),
                       ModelParts::from(ModelFile::PlanInput::kWeight, 0)};
  model.plan = plan.bytes();
  return model;
}

}  // namespace samples
