#include "serve/tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

static gnutls_datum_t datum_of(str text) {
    return (gnutls_datum_t){ .data = (unsigned char *)(uintptr_t)text.data, .size = (unsigned)text.length };
}

static int certificate_problem(str text) {
    const gnutls_datum_t data = datum_of(text);
    gnutls_x509_crt_t   *chain = NULL;
    unsigned             count = 0;
    const int            problem = gnutls_x509_crt_list_import2(&chain, &count, &data, GNUTLS_X509_FMT_PEM, 0);
    for (unsigned i = 0; problem >= 0 && i < count; i++) gnutls_x509_crt_deinit(chain[i]);
    if (problem >= 0) gnutls_free(chain);
    return problem;
}

static int key_problem(str text) {
    const gnutls_datum_t  data = datum_of(text);
    gnutls_x509_privkey_t key;
    int                   problem = gnutls_x509_privkey_init(&key);
    if (problem < 0) return problem;
    problem = gnutls_x509_privkey_import2(key, &data, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_x509_privkey_deinit(key);
    return problem;
}

static int pair_problem(str certificate, str key) {
    const gnutls_datum_t             certificate_data = datum_of(certificate), key_data = datum_of(key);
    gnutls_certificate_credentials_t both;
    int                              problem = gnutls_certificate_allocate_credentials(&both);
    if (problem < 0) return problem;
    problem = gnutls_certificate_set_x509_key_mem(both, &certificate_data, &key_data, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(both);
    return problem;
}

gm_status tls_check(const pem_file *certificate, const pem_file *key, error *e) {
    int problem = certificate_problem(certificate->text);
    if (problem < 0)
        return fail(e, GM_BAD_FILE, "%s: not a PEM certificate: %s", certificate->path, gnutls_strerror(problem));
    problem = key_problem(key->text);
    if (problem < 0) return fail(e, GM_BAD_FILE, "%s: not a PEM private key: %s", key->path, gnutls_strerror(problem));
    problem = pair_problem(certificate->text, key->text);
    if (problem == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return fail(e, GM_BAD_FILE, "the TLS key %s does not belong to the certificate %s", key->path,
                    certificate->path);
    if (problem < 0)
        return fail(e, GM_BAD_FILE, "the certificate %s and its key %s cannot be used: %s", certificate->path,
                    key->path, gnutls_strerror(problem));
    return GM_OK;
}
