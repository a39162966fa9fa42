#include "ddip/mpi/types.h"

#include "ddip/base/check.h"
#include "ddip/comm/reduce.h"

namespace ddip::mpi {
namespace {

using comm::Element;
using comm::Reduction;

Element element_of(MPI_Datatype type) {
  for (Element element : {Element::f32, Element::f64, Element::u8, Element::i8, Element::i16, Element::i32,
                          Element::i64, Element::boolean}) {
    if (type_of(element) == type) return element;
  }
  DDIP_CHECK(false, "a type that we gave");
}

template <Reduction reduction>
void combine(void* in, void* both, int* count, MPI_Datatype* type) {
  const void* inputs[] = {in, both};
  comm::reduce(element_of(*type), reduction, 1.0, inputs, both, static_cast<size_t>(*count));
}

template <Reduction reduction>
MPI_Op make() {
  MPI_Op operation = MPI_OP_NULL;
  MPI_Op_create(&combine<reduction>, 1, &operation);
  return operation;
}

template <typename T>
void scale(void* data, size_t count, double factor, double divisor) {
  T* values = static_cast<T*>(data);
  for (size_t index = 0; index < count; ++index)
    values[index] = values[index] * static_cast<T>(factor) / static_cast<T>(divisor);
}

}  // namespace

MPI_Datatype type_of(Element element) {
  switch (element) {
    case Element::f32: return MPI_FLOAT;
    case Element::f64: return MPI_DOUBLE;
    case Element::u8: return MPI_UINT8_T;
    case Element::i8: return MPI_INT8_T;
    case Element::i16: return MPI_INT16_T;
    case Element::i32: return MPI_INT32_T;
    case Element::i64: return MPI_INT64_T;
    case Element::boolean: return MPI_C_BOOL;
    case Element::f16:
    case Element::bf16: break;
  }
  DDIP_CHECK(false, "16-bit floats travel as 32 bits");
}

MPI_Op operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::min: {
      static const MPI_Op op = make<Reduction::min>();
      return op;
    }
    case Reduction::max: {
      static const MPI_Op op = make<Reduction::max>();
      return op;
    }
    case Reduction::product: {
      static const MPI_Op op = make<Reduction::product>();
      return op;
    }
    case Reduction::bit_and: {
      static const MPI_Op op = make<Reduction::bit_and>();
      return op;
    }
    case Reduction::bit_or: {
      static const MPI_Op op = make<Reduction::bit_or>();
      return op;
    }
    case Reduction::bit_xor: {
      static const MPI_Op op = make<Reduction::bit_xor>();
      return op;
    }
    default: {
      static const MPI_Op op = make<Reduction::sum>();
      return op;
    }
  }
}

Reducible::Reducible(const void* in, size_t count, const comm::Typed& typed)
    : typed_(typed), is_wide_(typed.element == Element::f16 || typed.element == Element::bf16) {
  if (!is_wide_) return;
  wide_.resize(count);
  comm::to_floats(typed.element, in, wide_.data(), count);
}

MPI_Datatype Reducible::type() const { return is_wide_ ? MPI_FLOAT : type_of(typed_.element); }

void Reducible::finish(void* out, size_t count, int world) {
  double factor = typed_.reduction == Reduction::scaled_sum ? typed_.scale : 1.0;
  double divisor = typed_.reduction == Reduction::mean ? world : 1.0;
  if (factor != 1.0 || divisor != 1.0) {
    if (typed_.element == Element::f64)
      scale<double>(out, count, factor, divisor);
    else
      scale<float>(is_wide_ ? wide_.data() : out, count, factor, divisor);
  }
  if (is_wide_) comm::from_floats(typed_.element, wide_.data(), out, count);
}

}  // namespace ddip::mpi
