// Philox4x32-10, as in src/base/random.h: four random words for a counter and a key. Include after wide.wgsl.

fn philox_words(counter: vec4<u32>, first_key: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var key = first_key;
    for (var i = 0; i < 10; i++) {
        let a = wide_product(0xd2511f53u, c.x);
        let b = wide_product(0xcd9e8d57u, c.z);
        c = vec4<u32>(b.y ^ c.y ^ key.x, b.x, a.y ^ c.w ^ key.y, a.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}
