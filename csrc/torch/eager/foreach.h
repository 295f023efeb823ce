// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Runs of `_foreach_*` operators as one launch per element of their lists, instead of one per operator and element.
///
/// While a scope is open on a thread, pointwise `_foreach_*` operators are written down as a chain instead of being
/// run. The chain runs when the scope ends, when an operator comes that does not fit, and before anything else looks at
/// memory or streams of the device (`settle`, in deferred.h). A result that nobody holds by then is never written and
/// takes no memory.
namespace outboard::aten {

namespace chains {

/// Opens a scope on the calling thread; scopes nest.
void begin();
/// Closes a scope; with the outermost one the chain runs. Throws what launches throw; then nothing waits any more.
void end();

/// Gives the `_foreach_*` operators that can be part of a chain their kernel.
void register_kernels();

}  // namespace chains

}  // namespace outboard::aten
