// SPDX-License-Identifier: Apache-2.0
#include "strict/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "strict/operands.h"

namespace outboard::strict {

Collective::Collective(const ob_collective& given, uint32_t rank, uint32_t size) : given_{}, rank_(rank), size_(size) {
  std::memcpy(&given_, &given, std::min(given.struct_size, sizeof(given_)));
  given_.struct_size = sizeof(given_);
  if (given_.kind != OB_ALL_TO_ALL || given_.sent == nullptr || given_.received == nullptr) return;
  sent_.assign(given_.sent, given_.sent + size);
  received_.assign(given_.received, given_.received + size);
}

uint64_t Collective::source_bytes() const {
  const uint64_t item = element_bytes(given_.dtype);
  if (given_.kind == OB_ALL_TO_ALL) return item * std::accumulate(sent_.begin(), sent_.end(), uint64_t{0});
  if (given_.kind == OB_BROADCAST && !is_root()) return 0;
  return item * given_.count * (given_.kind == OB_REDUCE_SCATTER ? size_ : 1);
}

uint64_t Collective::target_bytes() const {
  const uint64_t item = element_bytes(given_.dtype);
  if (given_.kind == OB_ALL_TO_ALL) return item * std::accumulate(received_.begin(), received_.end(), uint64_t{0});
  if (given_.kind == OB_REDUCE && !is_root()) return 0;
  return item * given_.count * (given_.kind == OB_ALL_GATHER ? size_ : 1);
}

std::string Collective::problem_of_places() const {
  const uint64_t read = source_bytes(), written = target_bytes(), item = element_bytes(given_.dtype);
  if (given_.source + read <= given_.target || given_.target + written <= given_.source) return "";
  bool allowed = given_.kind != OB_ALL_TO_ALL && given_.source == given_.target && read == written;
  const uint64_t part = rank_ * given_.count * item;
  if (given_.kind == OB_ALL_GATHER) allowed = given_.source == given_.target + part;
  if (given_.kind == OB_REDUCE_SCATTER) allowed = given_.target == given_.source + part;
  return allowed ? "" : "has a target that overlaps the source";
}

std::string Collective::problem() const {
  const bool rooted = given_.kind == OB_BROADCAST || given_.kind == OB_REDUCE;
  if (given_.kind > OB_ALL_TO_ALL) return "is of an unknown kind";
  if (element_bytes(given_.dtype) == 0) return "has an unknown dtype";
  if (rooted && given_.root >= size_) return "has a root that is no rank";
  if (given_.kind != OB_ALL_TO_ALL && given_.count == 0) return "has no elements";
  if (given_.kind != OB_ALL_TO_ALL) return problem_of_places();
  if (sent_.empty()) return "does not say how many elements go where";
  if (sent_[rank_] != received_[rank_]) return "sends to its own rank what it does not receive";
  return problem_of_places();
}

ob_collective Collective::at(ob_ptr source, ob_ptr target) const {
  ob_collective placed = given_;
  placed.source = source;
  placed.target = target;
  placed.sent = sent_.data();
  placed.received = received_.data();
  return placed;
}

}  // namespace outboard::strict
