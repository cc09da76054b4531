// Errors as values: no exception leaves a thread of the core.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace hvd {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's mistake: raised at the call, nothing changed elsewhere
  kMismatch = 2,         // ranks disagree about one operation; the job goes on
  kAborted = 3,          // the world's fault: a peer died, the job was shut down
  kNotInitialized = 4,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status ok() { return {}; }
  static Status invalid_argument(std::string text) {
    return {StatusCode::kInvalidArgument, std::move(text)};
  }
  static Status mismatch(std::string text) { return {StatusCode::kMismatch, std::move(text)}; }
  static Status aborted(std::string text) { return {StatusCode::kAborted, std::move(text)}; }
  static Status not_initialized(std::string text) {
    return {StatusCode::kNotInitialized, std::move(text)};
  }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

  StatusCode code_ = StatusCode::kOk;
  std::string text_;
};

}  // namespace hvd
