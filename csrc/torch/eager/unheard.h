// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace outboard::aten {

/// Which of PyTorch's warnings the user hears of a call that is only tried.
enum class Heard { kNone, kResizing };

/// While one lives, PyTorch's C++ warnings of this thread are not heard: a call that is only tried or traced has
/// nothing to tell the user that the call itself does not; but for those of `out=` tensors that have another size, and
/// of a call that raises, which is then not made.
class Unheard {
 public:
  explicit Unheard(Heard heard = Heard::kNone) : handler_(heard, c10::WarningUtils::get_warning_handler()) {}

  /// Lets the user hear what was warned of so far.
  void give_out() {
    for (const c10::Warning& warning : handler_.kept) handler_.user->process(warning);
    handler_.kept.clear();
  }

 private:
  struct Handler : c10::WarningHandler {
    Handler(Heard heard, c10::WarningHandler* user) : heard(heard), user(user) {}
    void process(const c10::Warning& warning) override {
      const bool is_resizing = warning.msg().rfind("An output with one or more elements was resized", 0) == 0;
      if (heard == Heard::kResizing && is_resizing) return user->process(warning);
      kept.push_back(warning);
    }

    Heard heard;
    c10::WarningHandler* user;
    std::vector<c10::Warning> kept;
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace outboard::aten
