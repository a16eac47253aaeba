#include "levin/compile/backends/kernel_source.h"

/// What every generated source begins with: numbers of tensors, vectors of them, and the scalar operations. NVRTC has
/// no headers.
namespace levin::compile {

std::string_view cuda_prelude() {
  return R"cuda(
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define INL static __device__ __forceinline__

struct F32 { enum { size = 4 }; typedef float N;
  INL N from(u64 b) { return __uint_as_float((u32)b); } INL u64 to(N x) { return __float_as_uint(x); } };
struct F64 { enum { size = 8 }; typedef double N;
  INL N from(u64 b) { return __longlong_as_double((i64)b); } INL u64 to(N x) { return (u64)__double_as_longlong(x); } };
struct BF16 { enum { size = 2 }; typedef float N;
  INL N from(u64 b) { return __uint_as_float((u32)b << 16); }
  INL u64 to(N x) { unsigned short r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; } };
struct F16 { enum { size = 2 }; typedef float N;
  INL N from(u64 b) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)b)); return r; }
  INL u64 to(N x) { unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; } };
struct B8 { enum { size = 1 }; typedef bool N; INL N from(u64 b) { return b != 0; } INL u64 to(N x) { return x; } };
struct U8 { enum { size = 1 }; typedef i64 N; INL N from(u64 b) { return (unsigned char)b; } INL u64 to(N x) { return (unsigned char)x; } };
struct I8 { enum { size = 1 }; typedef i64 N; INL N from(u64 b) { return (signed char)b; } INL u64 to(N x) { return (unsigned char)x; } };
struct I16 { enum { size = 2 }; typedef i64 N; INL N from(u64 b) { return (short)b; } INL u64 to(N x) { return (unsigned short)x; } };
struct I32 { enum { size = 4 }; typedef i64 N; INL N from(u64 b) { return (int)b; } INL u64 to(N x) { return (u32)x; } };
struct I64 { enum { size = 8 }; typedef i64 N; INL N from(u64 b) { return (i64)b; } INL u64 to(N x) { return (u64)x; } };

// E numbers of T in registers.
template <class T, int E> struct Pack {
  u32 w[(E * T::size + 3) / 4];
  __device__ __forceinline__ typename T::N get(int v) const {
    if (T::size == 8) return T::from(w[v * 2] | (u64)w[v * 2 + 1] << 32);
    if (T::size == 4) return T::from(w[v]);
    if (T::size == 2) return T::from(w[v / 2] >> (v % 2 * 16) & 0xffff);
    return T::from(w[v / 4] >> (v % 4 * 8) & 0xff);
  }
  __device__ __forceinline__ void set(int v, typename T::N x) {
    const u64 b = T::to(x);
    if (T::size == 8) { w[v * 2] = (u32)b; w[v * 2 + 1] = (u32)(b >> 32); }
    else if (T::size == 4) w[v] = (u32)b;
    else if (T::size == 2) { if (v % 2) w[v / 2] |= (u32)b << 16; else w[v / 2] = (u32)b; }
    else { if (v % 4) w[v / 4] |= (u32)b << (v % 4 * 8); else w[v / 4] = (u32)b; }
  }
  __device__ __forceinline__ void load(const void* base, i64 place) {
    const char* p = (const char*)base + place * T::size;
    enum { B = E * T::size };
    if (B >= 16) {
#pragma unroll
      for (int i = 0; i < B / 16; ++i) { const uint4 q = ((const uint4*)p)[i]; w[i * 4] = q.x; w[i * 4 + 1] = q.y; w[i * 4 + 2] = q.z; w[i * 4 + 3] = q.w; }
    } else if (B == 8) { const uint2 q = *(const uint2*)p; w[0] = q.x; w[1] = q.y; }
    else if (B == 4) w[0] = *(const u32*)p;
    else if (B == 2) w[0] = *(const unsigned short*)p;
    else w[0] = *(const unsigned char*)p;
  }
  __device__ __forceinline__ void store(void* base, i64 place) const {
    char* p = (char*)base + place * T::size;
    enum { B = E * T::size };
    if (B >= 16) {
#pragma unroll
      for (int i = 0; i < B / 16; ++i) ((uint4*)p)[i] = make_uint4(w[i * 4], w[i * 4 + 1], w[i * 4 + 2], w[i * 4 + 3]);
    } else if (B == 8) *(uint2*)p = make_uint2(w[0], w[1]);
    else if (B == 4) *(u32*)p = w[0];
    else if (B == 2) *(unsigned short*)p = (unsigned short)w[0];
    else *(unsigned char*)p = (unsigned char)w[0];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < (E * T::size + 3) / 4; ++i) w[i] = 0;
  }
};
template <class T> INL typename T::N read(const void* base, i64 place) { Pack<T, 1> p; p.load(base, place); return p.get(0); }
template <class T> INL void write(void* base, i64 place, typename T::N x) { Pack<T, 1> p; p.set(0, x); p.store(base, place); }
template <class T> INL typename T::N rounded(typename T::N x) { return T::from(T::to(x)); }

#define NAN32 __int_as_float(0x7fffffff)
#define INF32 __int_as_float(0x7f800000)
#define NAN64 __longlong_as_double(0x7fffffffffffffffll)
#define INF64 __longlong_as_double(0x7ff0000000000000ll)
template <class N> INL N f_min(N a, N b) { return a != a || a < b ? a : b; }
template <class N> INL N f_max(N a, N b) { return a != a || a > b ? a : b; }
template <class N> INL N f_sign(N a) { return (N)((a > (N)0) - (a < (N)0)); }
INL i64 whole(float x) { return (i64)x; }
INL i64 whole(double x) { return (i64)x; }

INL float f_div(float a, float b) {
#ifdef RELAXED
  return __fdividef(a, b) ;
#else
  return a / b;
#endif
}
INL float f_exp(float a) {
#ifdef RELAXED
  return __expf(a);
#else
  return expf(a);
#endif
}
INL float f_tanh(float a) {
#ifdef RELAXED
  const float t = 1.f - __fdividef(2.f, 1.f + __expf(2.f * fabsf(a)));
  return fabsf(a) < 0.0625f ? a * (1.f - a * a * 0.33333333f) : copysignf(t, a);
#else
  return tanhf(a);
#endif
}
INL float f_sigmoid(float a) {
#ifdef RELAXED
  return __fdividef(1.f, 1.f + __expf(-a));
#else
  return 1.f / (1.f + expf(-a));
#endif
}
INL double f_div(double a, double b) { return a / b; }
INL double f_exp(double a) { return exp(a); }
INL double f_tanh(double a) { return tanh(a); }
INL double f_sigmoid(double a) { return 1. / (1. + exp(-a)); }
#define BOTH(name, one, two) INL float f_##name(float a) { return one(a); } INL double f_##name(double a) { return two(a); }
BOTH(abs, fabsf, fabs) BOTH(expm1, expm1f, expm1) BOTH(exp2, exp2f, exp2) BOTH(log, logf, log) BOTH(log1p, log1pf, log1p)
BOTH(log2, log2f, log2) BOTH(log10, log10f, log10) BOTH(sqrt, sqrtf, sqrt) BOTH(rsqrt, rsqrtf, rsqrt) BOTH(sin, sinf, sin)
BOTH(cos, cosf, cos) BOTH(tan, tanf, tan) BOTH(erf, erff, erf) BOTH(atan, atanf, atan) BOTH(floor, floorf, floor)
BOTH(ceil, ceilf, ceil) BOTH(round, rintf, rint) BOTH(trunc, truncf, trunc)
INL float f_recip(float a) { return 1.f / a; }
INL double f_recip(double a) { return 1. / a; }
INL float f_pow(float a, float b) { return powf(a, b); }
INL double f_pow(double a, double b) { return pow(a, b); }
INL float f_fmod(float a, float b) { return fmodf(a, b); }
INL double f_fmod(double a, double b) { return fmod(a, b); }
INL float f_atan2(float a, float b) { return atan2f(a, b); }
INL double f_atan2(double a, double b) { return atan2(a, b); }
template <class N> INL N f_remainder(N a, N b) { const N r = f_fmod(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
template <class N> INL N f_trunc_div(N a, N b) { return f_trunc(a / b); }
template <class N> INL N f_floor_div(N a, N b) {
  if (b == 0) return a / b;
  const N r = f_fmod(a, b);
  N q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return a / b < 0 || 1 / (a / b) < 0 ? (N)-0.0 : (N)0;
  const N d = f_floor(q);
  return q - d > (N)0.5 ? d + 1 : d;
}
INL i64 f_abs(i64 a) { return a < 0 ? -a : a; }
INL i64 f_trunc_div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
INL i64 f_fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
INL i64 f_remainder(i64 a, i64 b) { const i64 r = f_fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
INL i64 f_floor_div(i64 a, i64 b) { const i64 r = f_fmod(a, b); return f_trunc_div(a, b) - (r != 0 && (r < 0) != (b < 0)); }

struct Sum { template <class N> INL N two(N a, N b) { return a + b; } };
struct Max { template <class N> INL N two(N a, N b) { return f_max(a, b); } };
struct Min { template <class N> INL N two(N a, N b) { return f_min(a, b); } };
struct Prod { template <class N> INL N two(N a, N b) { return a * b; } };
template <class R, int WIDTH, class N> INL N lanes(N x) {
#pragma unroll
  for (int o = WIDTH / 2; o > 0; o /= 2) x = R::two(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}
)cuda";
}

}  // namespace levin::compile
