// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plan_writer.h"
#include "runner/model_file.h"

/// Writes exported models (see src/outboard/exporting/format.py) for tests.
struct ModelParts {
  using Size = outboard::ModelFile::Dimension;

  static PlanWriter i64(int64_t value) {
    return PlanWriter().bytes(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
  }
  static PlanWriter symbol(const std::string& name, int64_t least, int64_t most) {
    return PlanWriter().text(name).append(i64(least)).append(i64(most));
  }
  static PlanWriter argument(const std::string& name, const std::vector<Size>& sizes,
                             outboard::DType dtype = outboard::DType::kFloat32, bool integer = false) {
    PlanWriter w;
    w.text(name).u8(integer ? 1 : 0).u8(static_cast<uint8_t>(dtype)).u32(static_cast<uint32_t>(sizes.size()));
    for (const Size& size : sizes) w.u8(size.kind).append(i64(size.value));
    return w;
  }
  static PlanWriter from(outboard::ModelFile::PlanInput::Source source, uint32_t number) {
    return PlanWriter().u8(source).u32(number);
  }

  std::string dialect = "opencl-c";
  uint8_t needs = 0;
  std::vector<PlanWriter> symbols, inputs, outputs, plan_inputs;
  std::string plan, weights_file, device_key;
  std::vector<std::string> binaries = {""};  ///< of the plan's programs
  std::vector<float> weight;                 ///< one-dimensional, in the file; none if empty
  uint64_t weight_bytes = 0;                 ///< what the header says of it; 0: the truth
  std::string external = "";                 ///< bytes of `weights_file`: the weight is at offset 8 there instead

  std::string bytes() const {
    const std::string first = header(0);
    std::string file = block(header(first.size() + 64)) + data();
    return file;
  }

 private:
  static std::string filled(std::string bytes) {
    bytes.resize(outboard::padded(bytes.size()));
    return bytes;
  }
  std::string raw() const {
    return std::string(reinterpret_cast<const char*>(weight.data()), weight.size() * sizeof(float));
  }
  std::string data() const { return external.empty() ? filled(raw()) : std::string(); }

  std::string header(uint64_t offset) const {
    PlanWriter w;
    w.text("test").text(dialect).u8(needs).each(symbols).each(inputs).each(outputs).text("{}").text(weights_file);
    w.u32(weight.empty() ? 0 : 1);
    if (!weight.empty()) {
      const std::string covered = external.empty() ? filled(raw()) : raw();
      const auto digest = outboard::sha256(covered.data(), covered.size());
      w.text("w").u8(static_cast<uint8_t>(outboard::DType::kFloat32));
      w.u32(1).append(i64(static_cast<int64_t>(weight.size()))).u32(1).append(i64(1));
      w.u8(external.empty() ? 0 : 1).append(i64(external.empty() ? static_cast<int64_t>(offset) : 8));
      w.append(i64(static_cast<int64_t>(weight_bytes != 0 ? weight_bytes : raw().size())));
      w.bytes(std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
    }
    w.each(plan_inputs).text(plan).text(device_key).u32(static_cast<uint32_t>(binaries.size()));
    for (const std::string& binary : binaries) w.text(binary);
    return filled(w.payload());
  }

  std::string block(const std::string& header) const {
    const auto digest = outboard::sha256(header.data(), header.size());
    PlanWriter w;
    w.bytes(std::string("OBMODEL\0", 8)).u32(1).u32(0).append(i64(static_cast<int64_t>(header.size())));
    w.append(i64(static_cast<int64_t>(64 + header.size() + data().size())));
    w.bytes(std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
    return w.payload() + header;
  }
};
