// Calls every op of a kernel library with random inputs and attributes, through the C API that
// onnxruntime calls it through.
//
//   coreai_ops_fuzz libcoreai_onnx_ops.so [--runs N] [--seed S] [--only OP]
//
// Built with sanitizers it finds what is read, written or computed wrongly; built without, that a
// call neither crashes nor hangs, that it refuses with the name of the op, that it gives the same
// bits on one thread and on several, and that both instruction sets take and refuse the same.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fuzz/fake_ort.h"
#include "fuzz/random_call.h"

namespace coreai::fuzz {
namespace {

struct Options {
  const char* library = nullptr;
  std::uint64_t runs = 1000;
  std::uint64_t seed = 1;
  std::string only;
};

struct Counts {
  std::uint64_t ran = 0;
  std::uint64_t refused = 0;
};

// A call's outcome: the refusal, or the bits of the outputs.
struct Outcome {
  bool ran = false;
  std::string message;
  std::vector<std::vector<char>> outputs;
};

[[noreturn]] void Report(const OrtCustomOp& op, std::uint64_t run, const std::string& what) {
  std::fprintf(stderr, "%s, run %llu: %s\n", op.GetName(&op), static_cast<unsigned long long>(run),
               what.c_str());
  std::exit(1);
}

// A refusal must say which op refuses.
void TakeStatus(const OrtCustomOp& op, std::uint64_t run, OrtStatus* status, Outcome* outcome) {
  outcome->message = status->message;
  delete status;
  const std::string name = op.GetName(&op);
  if (outcome->message.compare(0, name.size() + 2, name + ": ") != 0) {
    Report(op, run, "the refusal does not name the op: " + outcome->message);
  }
}

Outcome Run(const OrtCustomOp& op, std::uint64_t run, OrtKernelInfo* info,
            OrtKernelContext* context) {
  Outcome outcome;
  void* kernel = nullptr;
  OrtStatus* status = op.CreateKernelV2(&op, &FakeApi(), info, &kernel);
  if (status != nullptr) {
    if (kernel != nullptr) Report(op, run, "a kernel and a refusal");
    TakeStatus(op, run, status, &outcome);
    return outcome;
  }
  context->outputs.clear();
  status = op.KernelComputeV2(kernel, context);
  op.KernelDestroy(kernel);
  if (status != nullptr) {
    TakeStatus(op, run, status, &outcome);
    return outcome;
  }
  outcome.ran = true;
  for (const auto& output : context->outputs) {
    if (output == nullptr) {
      outcome.outputs.emplace_back();
    } else {
      outcome.outputs.emplace_back(output->data(), output->data() + output->bytes());
    }
  }
  return outcome;
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

// Calls an op on one and on several threads, and on both instruction sets.
bool Check(const OrtCustomOp& best, const OrtCustomOp& scalar, std::uint64_t seed) {
  RandomCall random(seed);
  OrtKernelInfo info;
  OrtKernelContext context;
  random.Fill(best, &info, &context);
  InferShapes(best, seed, context);
  const std::size_t threads = context.threads;
  const Outcome many = Run(best, seed, &info, &context);
  context.threads = 1;
  const Outcome one = Run(best, seed, &info, &context);
  if (many.ran != one.ran || many.message != one.message || many.outputs != one.outputs) {
    Report(best, seed, "not the same on " + std::to_string(threads) + " threads as on one");
  }
  const Outcome plain = Run(scalar, seed, &info, &context);
  if (plain.ran != one.ran || plain.message != one.message) {
    Report(best, seed, "refused by one instruction set only: " + one.message + plain.message);
  }
  return one.ran;
}

std::vector<const OrtCustomOp*> Register(const Options& options, const char* target) {
  void* library = dlopen(options.library, RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  setenv("COREAI_OPS_TARGET", target, 1);
  using Function = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);
  const auto add = reinterpret_cast<Function>(dlsym(library, "RegisterCustomOps"));
  OrtSessionOptions session;
  if (OrtStatus* status = add(&session, FakeApiBase())) {
    std::fprintf(stderr, "%s\n", status->message.c_str());
    std::exit(2);
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
    } else if (word == "--only") {
      options.only = value;
      ++i;
    } else {
      options.library = words[i];
    }
  }
  return options;
}

int Main(int count, char** words) {
  const Options options = Parse(count, words);
  if (options.library == nullptr) {
    std::fprintf(stderr, "usage: coreai_ops_fuzz LIBRARY [--runs N] [--seed S] [--only OP]\n");
    return 2;
  }
  const auto best = Register(options, "");
  const auto scalar = Register(options, "scalar");
  if (best.empty() || best.size() != scalar.size()) {
    std::fprintf(stderr, "no such op\n");
    return 2;
  }
  std::map<std::string, Counts> counts;
  for (std::uint64_t run = 0; run < options.runs; ++run) {
    const OrtCustomOp& op = *best[run % best.size()];
    const bool ran = Check(op, *scalar[run % best.size()], options.seed * 1000000007 + run);
    Counts& of_op = counts[op.GetName(&op)];
    ++(ran ? of_op.ran : of_op.refused);
  }
  for (const auto& [name, each] : counts) {
    std::printf("%-32s %10llu ran %10llu refused\n", name.c_str(),
                static_cast<unsigned long long>(each.ran),
                static_cast<unsigned long long>(each.refused));
    if (each.ran == 0 && options.runs >= 100 * best.size()) {
      std::fprintf(stderr, "%s never ran\n", name.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace coreai::fuzz

int main(int count, char** words) { return coreai::fuzz::Main(count, words); }
