// kv_unit is the element type of the buffers of keys and values. QUADS: heads (or, in kernels that write, whole rows) have a
// multiple of 4 values, and four are accessed at once.

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
