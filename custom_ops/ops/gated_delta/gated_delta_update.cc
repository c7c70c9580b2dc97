#include "kernels/gated_delta/gated_delta_update.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ops/checks.h"
#include "ops/convert.h"
#include "ops/item_pool.h"
#include "ops/op_list.h"
#include "ops/widened.h"

namespace coreai {
namespace {

namespace names = schema::gated_delta_update;
static_assert(names::kInputCount == 6 && names::kAttributeCount == 1, "the declaration changed");
enum Axis : std::size_t { kBatch, kHeads, kLength, kDim, kRank };
enum Output : std::size_t { kOutput, kState };

std::size_t Size(const TensorView& tensor, Axis axis) {
  return static_cast<std::size_t>(tensor.shape[axis]);
}

// The inputs of one run, checked against each other. Throws OpError.
struct Inputs {
  TensorView query, key, value, g, beta, state;

  Inputs(const Checker& check, const KernelContext& context, DType dtype)
      : query(context.Input(names::kQueryInput)),
        key(context.Input(names::kKeyInput)),
        value(context.Input(names::kValueInput)),
        g(context.Input(names::kGInput)),
        beta(context.Input(names::kBetaInput)),
        state(context.Input(names::kInitialStateInput)) {
    check.Require("query", query, dtype);
    check.Require("key", key, dtype);
    check.Require("value", value, dtype);
    check.RequireFloating("g", g);
    check.RequireFloating("beta", beta);
    check.RequireFloating("initial_state", state);
    CheckTokens(check);
    CheckState(check, dtype);
  }

  void CheckTokens(const Checker& check) const {
    const auto require = [&](bool condition, const char* what) {
      if (condition) return;
      check.Fail(std::string(what) + ": query " + ToString(query.shape) + ", key " +
                 ToString(key.shape) + ", value " + ToString(value.shape) + ", g " +
                 ToString(g.shape) + ", beta " + ToString(beta.shape));
    };
    require(query.shape.size() == kRank && value.shape.size() == kRank,
            "query, key and value must have rank 4");
    require(query.shape == key.shape, "query and key must have the same shape");
    require(
        value.shape[kBatch] == query.shape[kBatch] && value.shape[kLength] == query.shape[kLength],
        "value must have the batch size and length of query");
    const std::int64_t heads = query.shape[kHeads], value_heads = value.shape[kHeads];
    require(heads == 0 ? value_heads == 0 : value_heads % heads == 0,
            "the heads of value must be a multiple of those of query");
    const Shape per_token(value.shape.begin(), value.shape.begin() + kDim);
    require(g.shape == per_token && beta.shape == per_token,
            "g and beta must have the first three sizes of value");
  }

  void CheckState(const Checker& check, DType dtype) const {
    if (!state) return;
    if (state.shape != StateShape()) {
      check.Fail("input initial_state of shape " + ToString(state.shape) + " must be " +
                 ToString(StateShape()));
    }
    if (state.type != OnnxType(dtype) && state.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
      check.Fail(std::string("input initial_state is ") + TypeName(state.type) + ", expected " +
                 TypeName(OnnxType(dtype)) + " or float");
    }
  }

  Shape StateShape() const {
    return {value.shape[kBatch], value.shape[kHeads], query.shape[kDim], value.shape[kDim]};
  }
  Shape OutputShape() const {
    return {value.shape[kBatch], value.shape[kLength], value.shape[kHeads], value.shape[kDim]};
  }
};

class GatedDeltaUpdateOp : public Op {
 public:
  GatedDeltaUpdateOp(const KernelInfo& info, DType dtype, Target target)
      : check_(info.op()),
        normalize_(info.Int(names::kUseQkL2Norm, names::kUseQkL2NormDefault) != 0),
        dtype_(dtype),
        deterministic_(info.deterministic()),
        kernel_(FindGatedDelta(target, dtype)) {}

  void Compute(const KernelContext& context) const override {
    const Inputs in(check_, context, dtype_);
    const Widened g(in.g, dtype_), beta(in.beta, dtype_);
    GatedDeltaProblem problem = {};
    problem.query = in.query.data;
    problem.key = in.key.data;
    problem.value = in.value.data;
    problem.log_decay = g.data();
    problem.beta = beta.data();
    problem.initial_state = in.state ? in.state.data : nullptr;
    problem.output = context.Output(kOutput, in.OutputShape());
    problem.state = context.OptionalOutput(kState, in.StateShape());
    problem.batch = Size(in.query, kBatch);
    problem.heads = Size(in.query, kHeads);
    problem.value_heads = Size(in.value, kHeads);
    problem.length = Size(in.query, kLength);
    problem.key_dim = Size(in.query, kDim);
    problem.value_dim = Size(in.value, kDim);
    problem.normalize = normalize_;
    problem.steps = deterministic_;  // chunks have sums of their own
    problem.wide_state = in.state && in.state.type == OnnxType(WideDType(dtype_));
    // If one size is 0, the others may be too large to iterate over.
    const bool states = problem.state != nullptr && ElementCount(in.StateShape()) != 0;
    if (!states && ElementCount(in.OutputShape()) == 0) return;
    const bool foreign = !problem.wide_state && in.state && in.state.type != OnnxType(dtype_);
    if (foreign) {
      return RunWithNarrowState(context, in, problem);
    }
    ScratchMemory unused;
    if (problem.steps && problem.state == nullptr && problem.length > 1) {
      unused = AllocateScratch(ElementCount(in.StateShape()) *
                               SizeOf(problem.wide_state ? WideDType(dtype_) : dtype_));
      problem.state = unused.get();
    }
    Run(context, problem);
  }

 private:
  void Run(const KernelContext& context, const GatedDeltaProblem& problem) const {
    RunItems(context, GatedDeltaItems(problem), GatedDeltaScratchBytes(problem, dtype_),
             [&](std::size_t item, void* scratch) { kernel_(problem, item, scratch); });
  }

  // A float32 state of float64 tokens is widened before the kernel and rounded after it.
  void RunWithNarrowState(const KernelContext& context, const Inputs& in,
                          GatedDeltaProblem problem) const {
    const Widened before(in.state, dtype_);
    std::vector<double> after(ElementCount(in.state.shape));
    auto* rounded = static_cast<float*>(problem.state);
    problem.initial_state = before.data();
    problem.state = after.data();
    problem.wide_state = true;
    Run(context, problem);
    if (rounded == nullptr) return;
    for (std::size_t i = 0; i < after.size(); ++i) rounded[i] = static_cast<float>(after[i]);
  }

  Checker check_;
  bool normalize_;
  DType dtype_;
  bool deterministic_;
  GatedDeltaKernel kernel_;
};

// [batch, length, value heads, Dv], and a state of the initial one's type and shape.
void InferShape(const ShapeInference& shapes) {
  const SymbolicShape query = shapes.Input(names::kQueryInput);
  const SymbolicShape value = shapes.Input(names::kValueInput);
  if (query.rank() != kRank || value.rank() != kRank) return;
  const auto gathered = [&](std::initializer_list<std::pair<const SymbolicShape*, Axis>> axes) {
    SymbolicShape shape;
    shape.type = query.type;
    for (const auto& [from, axis] : axes) {
      shape.sizes.push_back(from->sizes[axis]);
      shape.names.push_back(from->names[axis]);
    }
    return shape;
  };
  shapes.SetOutput(
      kOutput, gathered({{&value, kBatch}, {&value, kLength}, {&value, kHeads}, {&value, kDim}}));
  SymbolicShape state =
      gathered({{&value, kBatch}, {&value, kHeads}, {&query, kDim}, {&value, kDim}});
  const SymbolicShape initial = shapes.Input(names::kInitialStateInput);
  if (initial.rank() != 0) state.type = initial.type;
  shapes.SetOutput(kState, state);
}

}  // namespace

const OpDefinition kGatedDeltaUpdateOp = Define<GatedDeltaUpdateOp>(names::kComposite, InferShape)
                                             .WithState(names::kInitialStateInput, kState);

}  // namespace coreai
