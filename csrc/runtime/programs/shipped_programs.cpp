// SPDX-License-Identifier: Apache-2.0
#include "runtime/programs/shipped_programs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "runtime/base/sha256.h"
#include "runtime/base/trusted_file.h"

namespace outboard {
namespace {

constexpr std::string_view kMagic = "OBPROG01";
constexpr size_t kDigits = 64;
constexpr size_t kStart = kMagic.size() + kDigits + sizeof(uint64_t);
constexpr size_t kEntry = kDigits + 2 * sizeof(uint64_t);

uint64_t number_at(std::string_view text, size_t offset) {
  uint64_t number = 0;
  std::memcpy(&number, text.data() + offset, sizeof(number));
  return number;
}

/// A file that was found to be whole.
class Table {
 public:
  explicit Table(std::string content) : content_(std::move(content)), count_(number_at(content_, kStart - 8)) {}

  static bool is_whole(std::string_view content) {
    if (content.size() < kStart || content.substr(0, kMagic.size()) != kMagic) return false;
    const uint64_t count = number_at(content, kStart - 8);
    if (count > (content.size() - kStart) / kEntry) return false;
    const std::string table(content.substr(kStart, count * kEntry));
    if (sha256_hex(table) != content.substr(kMagic.size(), kDigits)) return false;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t offset = number_at(table, i * kEntry + kDigits), bytes = number_at(table, (i + 1) * kEntry - 8);
      if (offset > content.size() || bytes > content.size() - offset) return false;
    }
    return true;
  }

  std::vector<std::string> find(const std::string& digest) const {
    std::vector<std::string> found;
    for (uint64_t i = first_of(digest); i < count_ && digest_of(i) == digest; ++i) {
      const size_t numbers = kStart + i * kEntry + kDigits;
      found.push_back(content_.substr(number_at(content_, numbers), number_at(content_, numbers + 8)));
    }
    return found;
  }

 private:
  std::string_view digest_of(uint64_t i) const {
    return std::string_view(content_).substr(kStart + i * kEntry, kDigits);
  }

  uint64_t first_of(const std::string& digest) const {
    uint64_t low = 0, high = count_;
    while (low < high) {
      const uint64_t middle = (low + high) / 2;
      (digest_of(middle) < digest ? low : high) = digest_of(middle) < digest ? middle + 1 : middle;
    }
    return low;
  }

  const std::string content_;
  const uint64_t count_;
};

/// Leaked: threads that build programs outlive static destructors.
struct State {
  std::mutex mutex;
  std::string path;
  bool looked = false;
  std::shared_ptr<const Table> table;
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

std::shared_ptr<const Table> read_table(const std::string& path) {
  try {
    std::optional<std::string> content = trusted::read(path);
    if (!content) return nullptr;
    if (Table::is_whole(*content)) return std::make_shared<const Table>(*std::move(content));
    std::fprintf(stderr, "outboard: the damaged file %s is not used\n", path.c_str());
  } catch (const trusted::Untrusted& why) {
    trusted::say_once("programs that came with Outboard are not used", why);
  }
  return nullptr;
}

std::shared_ptr<const Table> table() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  if (!own.looked && !own.path.empty()) own.table = read_table(own.path);
  own.looked = true;
  return own.table;
}

}  // namespace

void ShippedPrograms::set_file(const std::string& path) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  own.path = path;
  own.looked = false;
  own.table = nullptr;
}

std::vector<std::string> ShippedPrograms::find(const std::string& digest) {
  const std::shared_ptr<const Table> own = table();
  return own != nullptr ? own->find(digest) : std::vector<std::string>();
}

std::string program_digest(const std::string& source, const std::string& options, const char* driver) {
  return sha256_hex(source + '\0' + options + '\0' + driver);
}

}  // namespace outboard
