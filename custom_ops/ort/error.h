#pragma once

#include <exception>
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
  OpError error(api.GetErrorMessage(status), api.GetErrorCode(status));
  api.ReleaseStatus(status);
  throw error;
}

/// Runs `body` and returns what it throws as a status; null if it returns.
template <class Body>
OrtStatus* StatusOf(const OrtApi& api, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const OpError& error) {
    return api.CreateStatus(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ORT_FAIL, "coreai ops: out of memory");
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "coreai ops: unknown error");
  }
}

}  // namespace coreai
