#include "ort/session_entry.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "ort/error.h"

namespace coreai {

std::string SessionEntry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  int present = 0;
  ThrowOnError(api, api.HasSessionConfigEntry(options, key, &present));
  if (present == 0) return {};
  std::size_t size = 0;
  ThrowOnError(api, api.GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  ThrowOnError(api, api.GetSessionConfigEntry(options, key, value.data(), &size));
  value.resize(size == 0 ? 0 : size - 1);  // the reported size counts the terminating zero
  return value;
}

void* Address(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  const std::string text = SessionEntry(api, options, key);
  void* address = nullptr;
  if (!text.empty() && std::sscanf(text.c_str(), "%p", &address) != 1) {
    throw OpError(std::string(key) + " is " + text);
  }
  return address;
}

double Seconds(const OrtApi& api, const OrtSessionOptions* options, const char* key,
               double absent) {
  const std::string text = SessionEntry(api, options, key);
  if (text.empty()) return absent;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds > 0)) {
    throw OpError(std::string(key) + "=" + text + ": a number of seconds greater than 0 is needed");
  }
  return seconds;
}

}  // namespace coreai
