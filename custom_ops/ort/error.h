#pragma once

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "onnxruntime_c_api.h"

namespace coreai {

/// Versions of the C API's struct that this library uses; onnxruntime 1.21 is the first with it.
inline constexpr unsigned kOrtApiVersion = 21;

/// A refusal with its reason. Thrown inside the library only: the functions that onnxruntime calls
/// turn it into an OrtStatus.
class OpError : public std::exception {
 public:
  explicit OpError(std::string message, OrtErrorCode code = ORT_INVALID_ARGUMENT)
      : message_(std::move(message)), code_(code) {}
  const char* what() const noexcept override { return message_.c_str(); }
  OrtErrorCode code() const { return code_; }

 private:
  std::string message_;
  OrtErrorCode code_;
};

/// Throws what a call of onnxruntime reports.
inline void ThrowOnError(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::unique_ptr<OrtStatus, decltype(api.ReleaseStatus)> held(status, api.ReleaseStatus);
  throw OpError(api.GetErrorMessage(status), api.GetErrorCode(status));
}

/// Runs `body` and returns what it throws as a status that begins with `who`; null if it returns.
template <class Body>
OrtStatus* StatusOf(const OrtApi& api, const char* who, const Body& body) noexcept {
  const auto status = [&](OrtErrorCode code, const char* what) {
    // Refusals of ours begin with the op; what onnxruntime or the library reports does not.
    const std::string prefix = std::string(who) + ": ";
    const std::string text = what;
    const bool named = text.compare(0, prefix.size(), prefix) == 0;
    return api.CreateStatus(code, named ? what : (prefix + text).c_str());
  };
  try {
    try {
      body();
      return nullptr;
    } catch (const OpError& error) {
      return status(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      return status(ORT_FAIL, "out of memory");
    } catch (const std::exception& error) {
      return status(ORT_FAIL, error.what());
    }
  } catch (...) {
    // The message did not fit either.
    char text[128];
    std::snprintf(text, sizeof(text), "%s: out of memory", who);
    return api.CreateStatus(ORT_FAIL, text);
  }
}

}  // namespace coreai
