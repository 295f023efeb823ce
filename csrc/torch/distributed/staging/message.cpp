// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/staging/message.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>

#include "distributed/shared_memory.h"

namespace outboard::distributed {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Contents up to this go with the header: copying them costs less than another way there and back.
constexpr uint64_t kShort = uint64_t{64} << 10;

/// What is sent first, before short contents.
struct alignas(16) Header {
  uint64_t bytes;
  int64_t content_tag;
};

struct Range {
  uint64_t begin;
  uint64_t end;
};

std::vector<Range> parts_of(uint64_t bytes) {
  std::vector<Range> parts;
  for (uint64_t begin = 0; begin < bytes; begin += kWhole) parts.push_back({begin, std::min(bytes, begin + kWhole)});
  return parts;
}

at::Tensor buffer(uint64_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }

char* place_behind_header(const at::Tensor& buffer) { return static_cast<char*>(buffer.data_ptr()) + sizeof(Header); }

class Outgoing : public Message {
 public:
  Outgoing(Content content, int target, int tag, int content_tag)
      : content_(std::move(content)), target_(target), tag_(tag), content_tag_(content_tag) {}

  void begin(c10d::Backend& host) override {
    const bool is_short = content_.bytes <= kShort;
    Tensors first{buffer(sizeof(Header) + (is_short ? content_.bytes : 0))};
    const Header header{content_.bytes, content_tag_};
    std::memcpy(first[0].data_ptr(), &header, sizeof(header));
    if (is_short && content_.bytes != 0) {
      const Content::Part whole = content_.part(0, content_.bytes);
      std::memcpy(place_behind_header(first[0]), whole.host.data_ptr(), content_.bytes);
    }
    first_ = host.send(first, target_, tag_);
    if (!is_short && !is_to_be_watched()) only_ = send(host, content_.part(0, content_.bytes).host);
  }

  void finish(c10d::Backend& host) override {
    wait_for(first_);
    if (only_ != nullptr) wait_for(only_);
    if (is_to_be_watched()) send_parts(host);
  }

  bool is_to_be_watched() const override { return content_.bytes > kWhole; }
  int source() const override { return first_->sourceRank(); }

 private:
  WorkPointer send(c10d::Backend& host, at::Tensor part) {
    Tensors one{std::move(part)};
    return host.send(one, target_, content_tag_);
  }

  /// While a part is sent, the next one is brought to the host.
  void send_parts(c10d::Backend& host) {
    WorkPointer last;
    for (const Range& range : parts_of(content_.bytes)) {
      const Content::Part part = content_.part(range.begin, range.end);
      if (part.exchange != nullptr) part.exchange->wait();
      WorkPointer sent = send(host, part.host);
      if (last != nullptr) wait_for(last);
      last = std::move(sent);
    }
    wait_for(last);
  }

  const Content content_;
  const int target_;
  const int tag_;
  const int content_tag_;
  WorkPointer first_;
  WorkPointer only_;
};

class Incoming : public Message {
 public:
  Incoming(Content content, std::optional<int> source, int tag)
      : content_(std::move(content)), asked_(source), tag_(tag), buffer_(buffer(sizeof(Header) + kShort)) {}

  void begin(c10d::Backend& host) override {
    Tensors first{buffer_};
    first_ = asked_.has_value() ? host.recv(first, *asked_, tag_) : host.recvAnysource(first, tag_);
  }

  void finish(c10d::Backend& host) override {
    wait_for(first_);
    Header header{};
    std::memcpy(&header, buffer_.data_ptr(), sizeof(header));
    if (header.bytes != content_.bytes) refuse(host, header);
    if (header.bytes > kShort) return receive_parts(host, static_cast<int>(header.content_tag));
    if (header.bytes == 0) return;
    const Content::Part whole = content_.part(0, header.bytes);
    std::memcpy(whole.host.data_ptr(), place_behind_header(buffer_), header.bytes);
  }

  bool is_to_be_watched() const override { return content_.bytes > kShort; }
  int source() const override { return asked_.has_value() ? *asked_ : first_->sourceRank(); }

 private:
  WorkPointer receive(c10d::Backend& host, at::Tensor part, int content_tag) {
    Tensors one{std::move(part)};
    return host.recv(one, source(), content_tag);
  }

  /// Takes what was sent, so that its sender can go on.
  [[noreturn]] void refuse(c10d::Backend& host, const Header& header) {
    if (header.bytes > kShort) {
      for (const Range& range : parts_of(header.bytes)) {
        wait_for(receive(host, buffer(range.end - range.begin), static_cast<int>(header.content_tag)));
      }
    }
    throw MismatchError("rank " + std::to_string(source()) + " of the group sent " + std::to_string(header.bytes) +
                        " bytes, but the tensor that is to receive them has " + std::to_string(content_.bytes) +
                        ": sender and receiver need tensors of one size");
  }

  /// While a part arrives, the last one is brought to the device.
  void receive_parts(c10d::Backend& host, int content_tag) {
    struct Arriving {
      Content::Part part;
      WorkPointer work;
    };
    std::deque<Arriving> arriving;
    std::shared_ptr<Exchange> leaving;
    const auto finish_first = [&] {
      wait_for(arriving.front().work);
      if (leaving != nullptr) leaving->wait_until_given_back();
      leaving = arriving.front().part.exchange;
      if (leaving != nullptr) leaving->give_back();
      arriving.pop_front();
    };
    for (const Range& range : parts_of(content_.bytes)) {
      const Content::Part part = content_.part(range.begin, range.end);
      if (part.exchange != nullptr) part.exchange->wait();
      arriving.push_back({part, receive(host, part.host, content_tag)});
      if (arriving.size() > kAhead) finish_first();
    }
    while (!arriving.empty()) finish_first();
  }

  const Content content_;
  const std::optional<int> asked_;
  const int tag_;
  const at::Tensor buffer_;
  WorkPointer first_;
};

}  // namespace

void Message::abort() {
  WorkPointer work;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    work = under_way_;
  }
  if (work != nullptr) work->abort();
}

void Message::wait_for(const WorkPointer& work) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw std::runtime_error("aborted");
    under_way_ = work;
  }
  // The CPU backend says so where a transfer was given up.
  if (!work->wait()) throw std::runtime_error("aborted");
  const std::lock_guard lock(mutex_);
  under_way_ = nullptr;
}

std::unique_ptr<Message> outgoing_message(Content content, int target, int tag, int content_tag) {
  return std::make_unique<Outgoing>(std::move(content), target, tag, content_tag);
}

std::unique_ptr<Message> incoming_message(Content content, std::optional<int> source, int tag) {
  return std::make_unique<Incoming>(std::move(content), source, tag);
}

}  // namespace outboard::distributed
