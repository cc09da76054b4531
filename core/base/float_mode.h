// How a thread rounds and treats tiny numbers, for a while.
//
// Frameworks set their threads to flush tiny numbers to zero. The engine's sums must not depend on which
// thread computes them, and what a framework computes must not either.
#pragma once

#include <cfenv>

namespace hvd {

inline std::fenv_t float_mode() {
  std::fenv_t mode;
  std::fegetenv(&mode);
  return mode;
}

class FloatModeScope {
 public:
  // FE_DFL_ENV: as a thread starts.
  explicit FloatModeScope(const std::fenv_t* mode) : before_(float_mode()) { std::fesetenv(mode); }
  ~FloatModeScope() { std::fesetenv(&before_); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace hvd
