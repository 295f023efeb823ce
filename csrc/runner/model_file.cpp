// SPDX-License-Identifier: Apache-2.0
#include "runner/model_file.h"

#include <cstring>

#include "runner/model_fields.h"
#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/base/wire_reader.h"

namespace outboard {
namespace {

constexpr char kMagic[8] = {'O', 'B', 'M', 'O', 'D', 'E', 'L', '\0'};
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

/// Reads the header (model_fields.h), checking every length and number.
class Reader : private WireReader {
 public:
  Reader(const uint8_t* data, size_t bytes, ModelFile& model)
      : WireReader(data, bytes, invalid_header), model_(model) {}

  void read() {
    model_wire::fields(*this, model_);
    while (left() != 0) {
      if (WireReader::u8() != 0) invalid_header("it has fields that this version does not know");
    }
  }

  // ---- encodings ----

  using WireReader::choice;
  using WireReader::each;
  template <typename T>
  void record(T& value) {
    model_wire::fields(*this, value);
    check(value);
  }
  void u8(uint8_t& value) { value = WireReader::u8(); }
  void u32(uint32_t& value) { value = WireReader::u32(); }
  void boolean(bool& value) { value = WireReader::u8() != 0; }
  void text(std::string& value) { value = WireReader::text(); }
  void blob(std::string& value) { value = WireReader::text(); }
  void digest(std::array<uint8_t, 32>& value) { value = fixed<std::array<uint8_t, 32>>(); }
  template <typename T>
  void size(T& value) {
    const auto given = fixed<int64_t>();
    if (given < 0) invalid_header("negative size or offset");
    value = static_cast<T>(given);
  }
  void dtype(DType& value) {
    value = static_cast<DType>(WireReader::u8());
    element_size(value);
  }
  /// Names of arguments become names of files.
  void name(std::string& value) {
    value = WireReader::text();
    const bool plain = value.find('/') == std::string::npos && value.find('\0') == std::string::npos;
    if (value.empty() || value == "." || value == ".." || !plain) invalid_header("a name that no file can have");
  }
  void plan(std::shared_ptr<const Plan>& value) {
    const std::string bytes = WireReader::text();
    value = Plan::parse(bytes.data(), bytes.size());
  }

 private:
  // ---- what a record must be as a whole ----

  static void check(const ModelFile::Symbol& symbol) {
    if (symbol.least > symbol.most) invalid_header("a size that can have no value");
  }
  void check(const ModelFile::Dimension& dimension) const {
    if (dimension.kind == ModelFile::Dimension::kSymbol) {
      bounded(dimension.value, model_.symbols.size(), "number of a size");
    }
  }
  void check(const ModelFile::Argument& argument) const { bounded(argument.sizes.size(), kMaximumRank + 1, "rank"); }
  void check(const ModelFile::Weight& weight) const {
    const size_t rank = bounded(weight.sizes.size(), kMaximumRank + 1, "rank");
    if (rank != weight.strides.size()) invalid_header("weight with unequal ranks");
    if (span_bytes(weight.sizes.data(), weight.strides.data(), rank, weight.dtype) != weight.nbytes) {
      invalid_header("weight of another length than its shape needs");
    }
  }
  void check(const ModelFile::PlanInput& input) const {
    const bool is_weight = input.source == ModelFile::PlanInput::kWeight;
    bounded(input.number, is_weight ? model_.weights.size() : model_.inputs.size(), "number of a plan's input");
  }

  ModelFile& model_;  // so far
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
  if (prelude.version != model_wire::kVersion || prelude.reserved != 0) {
    invalid("it has version " + std::to_string(prelude.version) + " of the format, this is version " +
            std::to_string(model_wire::kVersion));
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
  Reader(header, prelude.header_bytes, model).read();
  check_plan(model);
  return model;
}

const uint8_t* contents(const ModelFile::Weight& weight, const uint8_t* data, size_t bytes) {
  const uint64_t stored = weight.external ? weight.nbytes : padded(weight.nbytes);
  const bool inside = stored <= bytes && weight.offset <= bytes - stored;
  if (inside && sha256(data + weight.offset, stored) == weight.digest) return data + weight.offset;
  invalid(weight.name + ": " +
          (weight.external ? "the weights file has other contents than when the model was exported" : "damaged") +
          " (the checksum differs)");
}

}  // namespace outboard
