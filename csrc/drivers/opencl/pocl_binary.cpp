// SPDX-License-Identifier: Apache-2.0
#include "opencl/pocl_binary.h"

#ifdef __linux__
#include <elf.h>
#endif

#include <cstring>
#include <stdexcept>

namespace outboard::opencl {
namespace {

constexpr std::string_view kMagic{"poclbin\0", 8};
constexpr uint32_t kFormat = 9;
constexpr size_t kHashBytes = 41;

/// Reads little-endian numbers and texts with their length before them. Throws std::out_of_range at the end.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}

  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, bytes(sizeof(value)).data(), sizeof(value));
    return value;
  }

  std::string_view bytes(uint64_t count) {
    if (count > data_.size()) throw std::out_of_range("the binary is cut short");
    const std::string_view result = data_.substr(0, count);
    data_.remove_prefix(count);
    return result;
  }

  std::string_view text() { return bytes(number<uint32_t>()); }
  size_t left() const { return data_.size(); }

 private:
  std::string_view data_;
};

/// The kernel's library for any local size, among the files of its folder in PoCL's cache.
std::string_view find_library(Reader files, const std::string& name) {
  const std::string wanted = "/" + name + "/0-0-0/" + name + ".so";
  while (files.left() > 0) {
    const std::string_view path = files.text(), content = files.text();
    if (path == wanted) return content;
  }
  return {};
}

PoclBinary::Kernel read_kernel(Reader& reader) {
  const auto record_bytes = reader.number<uint64_t>();
  if (record_bytes < sizeof(record_bytes)) throw std::out_of_range("the binary has a record of no length");
  Reader record(reader.bytes(record_bytes - sizeof(record_bytes)));
  const auto files_bytes = record.number<uint64_t>();
  record.number<uint32_t>();  // bytes of the description of the arguments
  PoclBinary::Kernel kernel{};
  kernel.name = record.text();
  kernel.arguments = record.number<uint32_t>();
  const auto locals = record.number<uint32_t>();
  for (uint64_t& size : kernel.required_local_size) size = record.number<uint64_t>();
  for (uint32_t i = 0; i < locals; ++i) kernel.locals.push_back(record.number<uint64_t>());
  if (files_bytes > record.left()) throw std::out_of_range("the binary has a record of the wrong length");
  record.bytes(record.left() - files_bytes);
  kernel.library = find_library(record, kernel.name);
  return kernel;
}

std::vector<PoclBinary::Kernel> read(Reader reader) {
  if (reader.bytes(kMagic.size()) != kMagic) return {};
  reader.number<uint64_t>();  // the device
  if (reader.number<uint32_t>() != kFormat) return {};
  const auto count = reader.number<uint32_t>();
  reader.bytes(3 * sizeof(uint32_t));  // flags and kind of binary
  reader.bytes(kHashBytes);
  reader.bytes(reader.number<uint64_t>());  // bitcode
  std::vector<PoclBinary::Kernel> kernels;
  for (uint32_t i = 0; i < count; ++i) kernels.push_back(read_kernel(reader));
  return kernels;
}

}  // namespace

std::vector<PoclBinary::Kernel> PoclBinary::kernels(std::string_view binary) {
  try {
    return read(Reader(binary));
  } catch (const std::out_of_range&) {
    return {};  // not of this format, whatever it begins with
  }
}

#ifdef __linux__
bool is_whole_library(std::string_view image) {
  Elf64_Ehdr header;
  if (image.size() < sizeof(header)) return false;
  std::memcpy(&header, image.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return false;
  const auto reaches = [&](uint64_t offset, uint64_t bytes) {
    return offset <= image.size() && bytes <= image.size() - offset;
  };
  if (!reaches(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize)) return false;
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  if (!reaches(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) return false;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    std::memcpy(&part, image.data() + header.e_phoff + i * sizeof(part), sizeof(part));
    if (!reaches(part.p_offset, part.p_filesz)) return false;
  }
  return true;
}
#else
bool is_whole_library(std::string_view) { return false; }
#endif

}  // namespace outboard::opencl
