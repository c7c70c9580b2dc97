// Calls every op of a kernel library with random inputs and attributes, through the C API that
// onnxruntime calls it through.
//
//   coreai_ops_fuzz libcoreai_onnx_ops.so [--runs N] [--seed S] [--only OP] [--first RUN] [--bits]
//
// Built with sanitizers it finds what is read, written or raced for wrongly; built without, that a
// call neither crashes nor hangs, that a refusal names op, argument and values, that a result is
// what the definition says, and has the same bits on one thread, on several, from several runs of
// one kernel at once and in place of its input, that all instruction sets refuse the same, and that
// an allocation that fails is a refusal too.
//
// With --bits the kernels are those of deterministic sessions, whose results must have the same
// bits on all instruction sets. The last line has a hash of them, to compare with other processors.

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz/array.h"
#include "fuzz/expected.h"
#include "fuzz/fake_ort.h"
#include "fuzz/random_call.h"
#include "fuzz/refusal.h"
#include "fuzz/starve.h"

namespace coreai::fuzz {
namespace {

struct Options {
  const char* library = nullptr;
  std::uint64_t runs = 1000;
  std::uint64_t seed = 1;
  std::uint64_t first = 0;  // to repeat a run of a longer call
  std::string only;
  bool bits = false;
};

struct Counts {
  std::uint64_t ran = 0;
  std::uint64_t judged = 0;  // of them, compared with the definition
  std::uint64_t refused = 0;
};

// A call's outcome: the refusal, or the bits of the outputs.
struct Outcome {
  bool ran = false;
  std::string message;
  std::vector<std::vector<char>> outputs;
};

constexpr std::uint64_t kRunsPerSeed = 1000000007;
const std::string kOutOfMemory = ": out of memory";

[[noreturn]] void Report(const OrtCustomOp& op, std::uint64_t run, const std::string& what) {
  std::fprintf(stderr, "%s, --seed %llu --first %llu --runs 1: %s\n", op.GetName(&op),
               static_cast<unsigned long long>(run / kRunsPerSeed),
               static_cast<unsigned long long>(run % kRunsPerSeed), what.c_str());
  std::exit(1);
}

// The call as it was made up.
struct Subject {
  const OrtCustomOp& op;
  std::uint64_t run;
  OrtKernelInfo* info;
};

void TakeStatus(const Subject& subject, const OrtKernelContext& context, OrtStatus* status,
                Outcome* outcome) {
  outcome->message = status->message;
  delete status;
  if (Starved() && outcome->message == subject.op.GetName(&subject.op) + kOutOfMemory) return;
  const std::string missing =
      MissingInRefusal(subject.op.GetName(&subject.op), outcome->message, *subject.info, context);
  if (missing.empty()) return;
  Report(subject.op, subject.run, "the refusal lacks " + missing + ": " + outcome->message);
}

// A kernel, made anew; null if it is refused.
void* Create(const Subject& subject, const OrtKernelContext& context, Outcome* outcome) {
  void* kernel = nullptr;
  OrtStatus* status = nullptr;
  {
    const Running library(Party::kLibrary);
    status = subject.op.CreateKernelV2(&subject.op, &FakeApi(), subject.info, &kernel);
  }
  if (status == nullptr) return kernel;
  if (kernel != nullptr) Report(subject.op, subject.run, "a kernel and a refusal");
  TakeStatus(subject, context, status, outcome);
  return nullptr;
}

void Compute(const Subject& subject, void* kernel, OrtKernelContext* context, Outcome* outcome) {
  context->outputs.clear();
  OrtStatus* status = nullptr;
  {
    const Running library(Party::kLibrary);
    status = subject.op.KernelComputeV2(kernel, context);
  }
  if (status != nullptr) return TakeStatus(subject, *context, status, outcome);
  outcome->ran = true;
  for (const auto& output : context->outputs) {
    if (output == nullptr) {
      outcome->outputs.emplace_back();
    } else {
      outcome->outputs.emplace_back(output->data(), output->data() + output->bytes());
    }
  }
}

Outcome Run(const Subject& subject, OrtKernelContext* context) {
  Outcome outcome;
  void* kernel = Create(subject, *context, &outcome);
  if (kernel == nullptr) return outcome;
  Compute(subject, kernel, context, &outcome);
  subject.op.KernelDestroy(kernel);
  return outcome;
}

// Runs one kernel from several threads at once, as onnxruntime does for runs of one session.
std::vector<Outcome> RunAtOnce(const Subject& subject, const OrtKernelContext& context) {
  std::vector<Outcome> outcomes(3);
  std::vector<OrtKernelContext> contexts(outcomes.size(), context);
  void* kernel = Create(subject, context, &outcomes[0]);
  if (kernel == nullptr) return {outcomes[0]};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    threads.emplace_back([&, i] { Compute(subject, kernel, &contexts[i], &outcomes[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  subject.op.KernelDestroy(kernel);
  return outcomes;
}

// Runs with the first output in the memory of the first input.
Outcome RunInPlace(const Subject& subject, OrtKernelContext context) {
  context.inputs[0] = std::make_shared<OrtValue>(*context.inputs[0]);
  context.in_place = true;
  return Run(subject, &context);
}

void Compare(const Subject& subject, const Outcome& one, const Outcome& other, const char* how) {
  if (other.ran == one.ran && other.message == one.message && other.outputs == one.outputs) return;
  Report(subject.op, subject.run,
         std::string("not the same ") + how + ": " + one.message + " / " + other.message);
}

// Runs with one allocation refused. It must fail with a status that says so, or not have been made.
void CheckStarved(const Subject& subject, OrtKernelContext context, std::size_t allocation,
                  const Outcome& fed) {
  Starve(allocation);
  const Outcome outcome = Run(subject, &context);
  Starve(0);
  if (outcome.ran || outcome.message == fed.message) {
    return Compare(subject, fed, outcome, "without memory");
  }
  if (outcome.message == subject.op.GetName(&subject.op) + kOutOfMemory) return;
  Report(subject.op, subject.run, "without memory: " + outcome.message);
}

bool WorksInPlace(const OrtCustomOp& op) {
  if (op.GetMayInplace == nullptr) return false;
  int *input = nullptr, *output = nullptr;
  const bool first = op.GetMayInplace(&input, &output) == 1 && *input == 0 && *output == 0;
  op.ReleaseMayInplace(input, output);
  return first;
}

void InferShapes(const OrtCustomOp& op, std::uint64_t run, const OrtKernelContext& context) {
  if (op.InferOutputShapeFn == nullptr) return;
  OrtShapeInferContext shapes;
  for (const auto& input : context.inputs) {
    shapes.inputs.push_back(input == nullptr ? OrtTensorTypeAndShapeInfo() : input->info);
  }
  shapes.outputs.resize(context.output_types.size());
  if (OrtStatus* status = op.InferOutputShapeFn(&op, &shapes)) {
    Report(op, run, "inferring shapes failed: " + status->message);
  }
}

// Makes up a call, and makes it in all ways in which it must come out the same.
void Check(const OrtCustomOp& vector, const OrtCustomOp& scalar, std::uint64_t seed,
           Counts* counts) {
  RandomCall random(seed);
  OrtKernelInfo info;
  OrtKernelContext context;
  random.Fill(vector, &info, &context);
  const Subject subject{vector, seed, &info};
  InferShapes(vector, seed, context);
  if (context.threads == 1 && random.OneIn(2)) {
    const std::vector<Outcome> all = RunAtOnce(subject, context);
    for (const Outcome& each : all) Compare(subject, all[0], each, "in runs at once");
  }
  const Outcome many = Run(subject, &context);
  const bool parallel = std::exchange(context.threads, 1) != 1;
  const Outcome one = parallel ? Run(subject, &context) : many;
  Compare(subject, one, many, "on several threads");
  ++(one.ran ? counts->ran : counts->refused);
  if (one.ran && WorksInPlace(vector)) {
    Compare(subject, one, RunInPlace(subject, context), "in place");
  }
  if (one.ran && random.tame()) {
    bool judged = false;
    const std::string wrong = WrongOutputs(vector.GetName(&vector), info, context, &judged);
    if (!wrong.empty()) Report(vector, seed, wrong);
    counts->judged += judged ? 1 : 0;
  }
  if (random.OneIn(4)) CheckStarved(subject, context, 1 + random.Below(40), one);
  const Outcome plain = Run({scalar, seed, &info}, &context);
  if (plain.ran != one.ran || plain.message != one.message) {
    Report(vector, seed, "refused by one instruction set only: " + one.message + plain.message);
  }
}

// NaN has the sign that a processor gives it.
void UnifyNan(ONNXTensorElementDataType type, std::vector<char>* bytes) {
  const std::size_t size = ElementBytes(type);
  if (!IsFloating(type)) return;
  const int fraction = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE    ? 52
                       : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT   ? 23
                       : type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ? 10
                                                                       : 7;
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - 8 * size), sign = all ^ all >> 1;
  const std::uint64_t infinity = (all ^ sign) >> fraction << fraction;
  for (std::size_t i = 0; i < bytes->size(); i += size) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes->data() + i, size);
    if ((bits & ~sign) > infinity) std::memcpy(bytes->data() + i, &all, size);
  }
}

// Makes a call on every target, and adds the bits of its results to a hash (FNV-1a).
void CheckBits(const std::vector<const OrtCustomOp*>& versions, std::uint64_t seed, Counts* counts,
               std::uint64_t* hash) {
  RandomCall random(seed, true);
  OrtKernelInfo info;
  OrtKernelContext context;
  random.Fill(*versions[0], &info, &context);
  // How many keys of weight 0 are multiplied depends on the target; infinity is NaN then.
  if (!random.tame()) return;
  std::vector<Outcome> outcomes;
  for (const OrtCustomOp* op : versions) {
    outcomes.push_back(Run({*op, seed, &info}, &context));
    std::vector<std::vector<char>>& outputs = outcomes.back().outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) UnifyNan(context.output_types[i], &outputs[i]);
    Compare({*op, seed, &info}, outcomes[0], outcomes.back(), "on the scalar target");
  }
  ++(outcomes[0].ran ? counts->ran : counts->refused);
  for (const std::vector<char>& output : outcomes[0].outputs) {
    for (const char byte : output) {
      *hash = (*hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
    }
  }
}

using RegisterFunction = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);

#ifdef _WIN32
RegisterFunction Load(const char* file) {
  HMODULE library = LoadLibraryA(file);
  if (library == nullptr) {
    std::fprintf(stderr, "%s: error %lu\n", file, GetLastError());
    std::exit(2);
  }
  const auto address = reinterpret_cast<void*>(GetProcAddress(library, "RegisterCustomOps"));
  return reinterpret_cast<RegisterFunction>(address);
}

void SelectTarget(const char* target) { _putenv_s("COREAI_OPS_TARGET", target); }
#else
RegisterFunction Load(const char* file) {
  void* library = dlopen(file, RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return reinterpret_cast<RegisterFunction>(dlsym(library, "RegisterCustomOps"));
}

void SelectTarget(const char* target) { setenv("COREAI_OPS_TARGET", target, 1); }
#endif

// The ops of a target; none if this machine lacks it.
std::vector<const OrtCustomOp*> Register(const Options& options, const char* target) {
  const RegisterFunction add = Load(options.library);
  SelectTarget(target);
  OrtSessionOptions session;
  session.deterministic = options.bits;
  if (OrtStatus* status = add(&session, FakeApiBase())) {
    const bool lacking = status->message.find("is not supported by") != std::string::npos;
    if (!lacking) std::fprintf(stderr, "%s\n", status->message.c_str());
    delete status;
    if (!lacking) std::exit(2);
    return {};
  }
  std::vector<const OrtCustomOp*> ops;
  for (const OrtCustomOp* op : session.domains.at(0)->ops) {
    // Variants of a name have the same implementation.
    const bool plain = std::strchr(op->GetName(op), '.') == nullptr;
    if (plain && (options.only.empty() || options.only == op->GetName(op))) ops.push_back(op);
  }
  return ops;
}

Options Parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const char* value = i + 1 < count ? words[i + 1] : "";
    if (word == "--runs") {
      options.runs = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (word == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (word == "--first") {
      options.first = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (word == "--only") {
      options.only = value;
      ++i;
    } else if (word == "--bits") {
      options.bits = true;
    } else {
      options.library = words[i];
    }
  }
  return options;
}

int Main(int count, char** words) {
  const Options options = Parse(count, words);
  if (options.library == nullptr) {
    std::fprintf(stderr,
                 "usage: coreai_ops_fuzz LIBRARY [--runs N] [--seed S] [--only OP] [--first RUN] "
                 "[--bits]\n");
    return 2;
  }
  const auto scalar = Register(options, "scalar");
  std::vector<std::vector<const OrtCustomOp*>> vectors;
  std::printf("targets of this machine: scalar");
  for (const char* target : {"neon", "avx2", "avx512", "avx512_bf16", "amx"}) {
    auto ops = Register(options, target);
    if (ops.empty()) continue;
    std::printf(" %s", target);
    vectors.push_back(std::move(ops));
  }
  std::printf("\n");
  if (vectors.empty()) vectors.push_back(scalar);
  if (scalar.empty()) {
    std::fprintf(stderr, "no such op\n");
    return 2;
  }
  std::map<std::string, Counts> counts;
  std::uint64_t hash = 0xCBF29CE484222325;
  for (std::uint64_t run = options.first; run < options.first + options.runs; ++run) {
    const std::size_t place = run % scalar.size();
    const std::uint64_t seed = options.seed * kRunsPerSeed + run;
    if (options.bits) {
      std::vector<const OrtCustomOp*> versions = {scalar[place]};
      for (const auto& vector : vectors) versions.push_back(vector[place]);
      CheckBits(versions, seed, &counts[versions[0]->GetName(versions[0])], &hash);
      continue;
    }
    const OrtCustomOp& op = *vectors[run / scalar.size() % vectors.size()][place];
    Check(op, *scalar[place], seed, &counts[op.GetName(&op)]);
  }
  for (const auto& [name, each] : counts) {
    std::printf("%-32s %10llu ran, %10llu of them as defined %10llu refused\n", name.c_str(),
                static_cast<unsigned long long>(each.ran),
                static_cast<unsigned long long>(each.judged),
                static_cast<unsigned long long>(each.refused));
    if (!options.bits && each.judged == 0 && options.runs >= 100 * scalar.size()) {
      std::fprintf(stderr, "%s never ran and was judged\n", name.c_str());
      return 1;
    }
  }
  if (options.bits)
    std::printf("bits of results: %016llx\n", static_cast<unsigned long long>(hash));
  return 0;
}

}  // namespace
}  // namespace coreai::fuzz

int main(int count, char** words) { return coreai::fuzz::Main(count, words); }
