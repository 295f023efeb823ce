// SPDX-License-Identifier: Apache-2.0
// Made by tools/wire_schema.py of src/outboard/exporting/format.py: change that, and run it.
#pragma once

#include "runner/model_file.h"

/// The fields of a model in the order in which they are written. `Wire` reads or writes: it has a method for each
/// encoding, which takes the field.
namespace outboard::model_wire {

constexpr uint32_t kVersion = 1;

static_assert(ModelFile::kHalf == 1);
static_assert(ModelFile::kDouble == 2);
static_assert(ModelFile::kInt64Atomics == 4);
static_assert(ModelFile::kSubGroups == 8);
static_assert(ModelFile::kMatrixUnits == 16);
static_assert(ModelFile::Dimension::kFixed == 0);
static_assert(ModelFile::Dimension::kSymbol == 1);
static_assert(ModelFile::Dimension::kAny == 2);
static_assert(ModelFile::Argument::kTensor == 0);
static_assert(ModelFile::Argument::kInt == 1);
static_assert(ModelFile::PlanInput::kInput == 0);
static_assert(ModelFile::PlanInput::kWeight == 1);

template <typename Wire>
void fields(Wire& wire, ModelFile::Symbol& x) {
  wire.text(x.name);
  wire.size(x.least);
  wire.size(x.most);
}

template <typename Wire>
void fields(Wire& wire, ModelFile::Dimension& x) {
  wire.choice(x.kind, ModelFile::Dimension::kAny);
  wire.size(x.value);
}

template <typename Wire>
void fields(Wire& wire, ModelFile::Argument& x) {
  wire.name(x.name);
  wire.choice(x.kind, ModelFile::Argument::kInt);
  wire.dtype(x.dtype);
  wire.each(x.sizes, [&](auto& item) { wire.record(item); });
}

template <typename Wire>
void fields(Wire& wire, ModelFile::Weight& x) {
  wire.text(x.name);
  wire.dtype(x.dtype);
  wire.each(x.sizes, [&](auto& item) { wire.size(item); });
  wire.each(x.strides, [&](auto& item) { wire.size(item); });
  wire.boolean(x.external);
  wire.size(x.offset);
  wire.size(x.nbytes);
  wire.digest(x.digest);
}

template <typename Wire>
void fields(Wire& wire, ModelFile::PlanInput& x) {
  wire.choice(x.source, ModelFile::PlanInput::kWeight);
  wire.u32(x.number);
}

template <typename Wire>
void fields(Wire& wire, ModelFile& x) {
  wire.text(x.producer);
  wire.text(x.dialect);
  wire.u8(x.needs);
  wire.each(x.symbols, [&](auto& item) { wire.record(item); });
  wire.each(x.inputs, [&](auto& item) { wire.record(item); });
  wire.each(x.outputs, [&](auto& item) { wire.record(item); });
  wire.text(x.call);
  wire.text(x.weights_file);
  wire.each(x.weights, [&](auto& item) { wire.record(item); });
  wire.each(x.plan_inputs, [&](auto& item) { wire.record(item); });
  wire.plan(x.plan);
  wire.text(x.device_key);
  wire.each(x.binaries, [&](auto& item) { wire.blob(item); });
}

}  // namespace outboard::model_wire
