// A bias, and the activation after it. Included once per target.

#include "hwy/highway.h"

#if defined(COREAI_KERNELS_ADD_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COREAI_KERNELS_ADD_BIAS_INL_H_
#undef COREAI_KERNELS_ADD_BIAS_INL_H_
#else
#define COREAI_KERNELS_ADD_BIAS_INL_H_
#endif

#include "kernels/elementwise/activations-inl.h"
#include "kernels/elementwise/add_bias.h"
#include "simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coreai {
namespace HWY_NAMESPACE {

template <class Act, typename T>
void AddBiasRows(const AddBias& a) {
  const hn::ScalableTag<Wide<T>> d;
  const size_t lanes = hn::Lanes(d);
  const auto* in = static_cast<const T*>(a.input);
  const auto* bias = static_cast<const T*>(a.bias);
  auto* out = static_cast<T*>(a.output);
  const Act act;
  for (size_t row = 0; row < a.rows; ++row, in += a.columns, out += a.columns) {
    size_t c = 0;
    for (; c + lanes <= a.columns; c += lanes) {
      StoreNarrow(act(d, hn::Add(LoadWide(d, in + c), LoadWide(d, bias + c))), d, out + c);
    }
    if (const size_t n = a.columns - c; n != 0) {
      const auto sum = hn::Add(LoadWideN(d, in + c, n), LoadWideN(d, bias + c, n));
      StoreNarrowN(act(d, sum), d, out + c, n);
    }
  }
}

template <class Act>
AddBiasKernel SelectAddBiasRows(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return AddBiasRows<Act, float>;
    case DType::kFloat16:
      return AddBiasRows<Act, hwy::float16_t>;
    case DType::kBFloat16:
      return AddBiasRows<Act, hwy::bfloat16_t>;
    case DType::kFloat64:
      return AddBiasRows<Act, double>;
  }
  return nullptr;
}

inline AddBiasKernel SelectAddBias(DType dtype, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return SelectAddBiasRows<NoActivation>(dtype);
    case Activation::kSilu:
      return SelectAddBiasRows<Silu>(dtype);
    case Activation::kGelu:
      return SelectAddBiasRows<Gelu>(dtype);
    case Activation::kGeluTanh:
      return SelectAddBiasRows<GeluTanh>(dtype);
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace coreai
HWY_AFTER_NAMESPACE();

#endif
