// SPDX-License-Identifier: Apache-2.0
#include "runner/model_file.h"

#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/base/wire_reader.h"

namespace outboard {
namespace {

constexpr char kMagic[8] = {'O', 'B', 'M', 'O', 'D', 'E', 'L', '\0'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kBlock = 64;

[[noreturn]] void invalid(const std::string& what) { throw Error(OB_INVALID_ARGUMENT, what); }
[[noreturn]] void invalid_header(const std::string& what) { invalid("its header is not valid: " + what); }

/// The first block.
struct Prelude {
  char magic[8];
  uint32_t version, reserved;
  uint64_t header_bytes, file_bytes;
  uint8_t digest[32];
};
static_assert(sizeof(Prelude) == kBlock);

class Reader : private WireReader {
 public:
  Reader(const uint8_t* data, size_t bytes) : WireReader(data, bytes, invalid_header) {}

  void model(ModelFile& model) {
    model.producer = text();
    model.dialect = text();
    model.needs = u8();
    each(model.symbols, [&] { return symbol(); });
    symbols_ = model.symbols.size();
    each(model.inputs, [&] { return argument(); });
    each(model.outputs, [&] { return argument(); });
    text();  // how Python nests arguments and results
    model.weights_file = text();
    each(model.weights, [&] { return weight(); });
    each(model.plan_inputs, [&] { return plan_input(model); });
    const std::string plan = text();
    model.device_key = text();
    each(model.binaries, [&] { return text(); });
    while (left() != 0) {
      if (u8() != 0) invalid_header("it has fields that this version does not know");
    }
    model.plan = Plan::parse(plan.data(), plan.size());
  }

 private:
  int64_t size() {
    const auto value = fixed<int64_t>();
    if (value < 0) invalid_header("negative size or offset");
    return value;
  }

  DType dtype() {
    const auto value = static_cast<DType>(u8());
    element_size(value);
    return value;
  }

  ModelFile::Symbol symbol() {
    ModelFile::Symbol s;
    s.name = text();
    s.least = size();
    s.most = size();
    if (s.least > s.most) invalid_header("a size that can have no value");
    return s;
  }

  /// Names of arguments become names of files.
  std::string name() {
    std::string value = text();
    const bool plain = value.find('/') == std::string::npos && value.find('\0') == std::string::npos;
    if (value.empty() || value == "." || value == ".." || !plain) invalid_header("a name that no file can have");
    return value;
  }

  template <typename Item, typename Read>
  void dimensions(std::vector<Item>& items, Read&& read) {
    each(items, read);
    bounded(items.size(), kMaximumRank + 1, "rank");
  }

  ModelFile::Dimension dimension() {
    ModelFile::Dimension d;
    d.kind = static_cast<ModelFile::Dimension::Kind>(bounded(u8(), ModelFile::Dimension::kAny + 1u, "kind of size"));
    d.value = size();
    if (d.kind == ModelFile::Dimension::kSymbol) bounded(d.value, symbols_, "number of a size");
    return d;
  }

  ModelFile::Argument argument() {
    ModelFile::Argument a;
    a.name = name();
    a.kind = static_cast<ModelFile::Argument::Kind>(bounded(u8(), ModelFile::Argument::kInt + 1u, "kind of argument"));
    a.dtype = dtype();
    dimensions(a.sizes, [&] { return dimension(); });
    return a;
  }

  ModelFile::Weight weight() {
    ModelFile::Weight w;
    w.name = text();
    w.dtype = dtype();
    dimensions(w.sizes, [&] { return size(); });
    dimensions(w.strides, [&] { return size(); });
    w.external = u8() != 0;
    w.offset = static_cast<uint64_t>(size());
    w.bytes = static_cast<uint64_t>(size());
    w.digest = fixed<std::array<uint8_t, 32>>();
    if (w.sizes.size() != w.strides.size()) invalid_header("weight with unequal ranks");
    if (span_bytes(w.sizes.data(), w.strides.data(), w.sizes.size(), w.dtype) != w.bytes) {
      invalid_header("weight of another length than its shape needs");
    }
    return w;
  }

  ModelFile::PlanInput plan_input(const ModelFile& model) {
    ModelFile::PlanInput p;
    p.source = static_cast<ModelFile::PlanInput::Source>(bounded(u8(), ModelFile::PlanInput::kWeight + 1u, "source"));
    const size_t limit = p.source == ModelFile::PlanInput::kInput ? model.inputs.size() : model.weights.size();
    p.number = bounded(u32(), limit, "number of a plan's input");
    return p;
  }

  size_t symbols_ = 0;
};

/// Whether the plan takes and returns what the header says: nothing but tensors, as many as there are.
void check_plan(const ModelFile& model) {
  const Plan& plan = *model.plan;
  if (plan.inputs.size() != model.plan_inputs.size() || plan.outputs.size() != model.outputs.size()) {
    invalid_header("the plan has other arguments than the model");
  }
  if (plan.programs.size() != model.binaries.size()) invalid_header("the plan has other programs than the model");
  for (const uint8_t kind : plan.inputs) {
    if (kind != Plan::kTensorInput) invalid_header("the plan takes more than tensors");
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const bool integer = plan.outputs[i].kind == Output::kInt;
    const bool tensor = plan.outputs[i].kind == Output::kTensor || plan.outputs[i].kind == Output::kInput;
    if (!(model.outputs[i].kind == ModelFile::Argument::kInt ? integer : tensor)) {
      invalid_header("the plan has other results than the model");
    }
  }
  for (const Step& step : plan.steps) {
    const bool own = step.kind != Step::kCall && step.kind != Step::kSeeds;
    if (!own) invalid_header("the plan calls functions that are not in the file");
  }
  for (const ModelFile::Argument& input : model.inputs) {
    bool known = input.kind == ModelFile::Argument::kTensor;
    for (const ModelFile::Dimension& d : input.sizes) known = known && d.kind != ModelFile::Dimension::kAny;
    if (!known) invalid_header("an input without a shape");
  }
}

}  // namespace

uint64_t padded(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

ModelFile ModelFile::parse(const uint8_t* data, size_t bytes) {
  Prelude prelude;
  if (bytes < sizeof(prelude) || std::memcmp(data, kMagic, sizeof(kMagic)) != 0) {
    invalid("it is not a model written by outboard.export");
  }
  std::memcpy(&prelude, data, sizeof(prelude));
  if (prelude.version != kVersion || prelude.reserved != 0) {
    invalid("it has version " + std::to_string(prelude.version) + " of the format, this is version " +
            std::to_string(kVersion));
  }
  if (prelude.file_bytes != bytes) {
    invalid("it should have " + std::to_string(prelude.file_bytes) + " bytes, and has " + std::to_string(bytes));
  }
  if (prelude.header_bytes > bytes - sizeof(prelude)) invalid_header("truncated");
  const uint8_t* header = data + sizeof(prelude);
  const auto digest = sha256(header, prelude.header_bytes);
  if (std::memcmp(digest.data(), prelude.digest, digest.size()) != 0) {
    invalid("its header is damaged (the checksum differs)");
  }
  ModelFile model;
  Reader(header, prelude.header_bytes).model(model);
  check_plan(model);
  return model;
}

const uint8_t* contents(const ModelFile::Weight& weight, const uint8_t* data, size_t bytes) {
  const uint64_t stored = weight.external ? weight.bytes : padded(weight.bytes);
  const bool inside = stored <= bytes && weight.offset <= bytes - stored;
  if (inside && sha256(data + weight.offset, stored) == weight.digest) return data + weight.offset;
  invalid(weight.name + ": " +
          (weight.external ? "the weights file has other contents than when the model was exported" : "damaged") +
          " (the checksum differs)");
}

}  // namespace outboard
