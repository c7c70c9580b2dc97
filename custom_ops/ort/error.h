#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "onnxruntime_c_api.h"

namespace coreai {

/// Versions of the C API's struct that this library uses; onnxruntime 1.21 is the first with it.
inline constexpr unsigned kOrtApiVersion = 21;

/// Whether this onnxruntime is release 1.`minor` or later.
inline bool IsAtLeast(const OrtApiBase& base, long minor) {
  char* end = nullptr;
  const long major = std::strtol(base.GetVersionString(), &end, 10);
  return major > 1 ||
         (major == 1 && (*end == '.' ? std::strtol(end + 1, nullptr, 10) : 0) >= minor);
}

/// An error with its reason. Thrown only inside the library: the functions that onnxruntime calls
/// convert it to an OrtStatus.
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

/// Throws the error of an onnxruntime call, if there is one.
inline void ThrowOnError(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::unique_ptr<OrtStatus, decltype(api.ReleaseStatus)> held(status, api.ReleaseStatus);
  throw OpError(api.GetErrorMessage(status), api.GetErrorCode(status));
}

/// Runs `body`; returns an exception as a status that begins with `who`, or null if there is none.
template <class Body>
OrtStatus* StatusOf(const OrtApi& api, const char* who, const Body& body) noexcept {
  const auto status = [&](OrtErrorCode code, const char* what) {
    // Our own errors begin with the op; errors of onnxruntime or the standard library do not.
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
    // There was no memory for the message either.
    char text[128];
    std::snprintf(text, sizeof(text), "%s: out of memory", who);
    return api.CreateStatus(ORT_FAIL, text);
  }
}

}  // namespace coreai
