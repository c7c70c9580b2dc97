#include <string>

#include "ops/attention/attention_op.h"
#include "ops/op_list.h"

namespace coreai {
namespace {

namespace names = schema::attention_nbits;
static_assert(names::kInputCount == 7 && names::kAttributeCount == 6, "the declaration changed");

/// Throws OpError if there are no codes of that size.
unsigned BitsOf(const KernelInfo& info) {
  const std::int64_t bits = info.Int(names::kBits, names::kBitsDefault);
  if (bits != 8 && bits != 4) {
    Checker(info.op()).Fail("attribute bits is " + std::to_string(bits) + ", expected 8 or 4");
  }
  return static_cast<unsigned>(bits);
}

class AttentionNbitsOp : public AttentionOp {
 public:
  AttentionNbitsOp(const KernelInfo& info, DType dtype, Target target)
      : AttentionOp(info, dtype, FindAttentionNbits(target, dtype, BitsOf(info)), false),
        bits_(BitsOf(info)) {}

  void Compute(const KernelContext& context) const override {
    Run(context, {context.Input(names::kQueryInput), context.Input(names::kKeyCodesInput),
                  context.Input(names::kValueCodesInput), TensorView(),
                  context.Input(names::kAttnMaskInput), context.Input(names::kSinksInput), bits_,
                  context.Input(names::kKeyScalesInput), context.Input(names::kValueScalesInput)});
  }

 private:
  unsigned bits_;
};

}  // namespace

// The last size follows from an attribute, which the inference of shapes does not see.
const OpDefinition kAttentionNbitsOp = Define<AttentionNbitsOp>(names::kComposite, NoShape);

}  // namespace coreai
