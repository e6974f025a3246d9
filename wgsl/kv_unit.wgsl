// What keys and values are stored in: kv_unit, the element of their buffers. QUADS: heads (or, when they are written, whole rows)
// have a multiple of 4 values, and four are taken at once.

#if KV_TYPE == q8_0
alias kv_unit = u32;
#elif KV_TYPE == f16
#if QUADS
alias kv_unit = vec2<u32>;
#else
alias kv_unit = u32;
#endif
#else
#if QUADS
alias kv_unit = vec4<f32>;
#else
alias kv_unit = f32;
#endif
#endif
