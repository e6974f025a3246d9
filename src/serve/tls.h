/* TLS certificates and keys: why a pair cannot be used. libmicrohttpd only says that TLS failed. */

#ifndef GM_SERVE_TLS_H
#define GM_SERVE_TLS_H

#include "base/base.h"

typedef struct {
    const char *path;
    str         text; /* PEM */
} pem_file;

/* GM_BAD_FILE names the file that is not what it should be, or says that the key belongs to another certificate. */
gm_status tls_check(const pem_file *certificate, const pem_file *key, error *e);

#endif
