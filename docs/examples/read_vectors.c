/* Golden vectors read in C11, with nothing but libc: computes attention for one case of a file, compares it with what is
 * expected, and writes it down for `refattn vectors check`.
 *
 *     cc -std=c11 -O2 -o read_vectors read_vectors.c -lm
 *     ./read_vectors vectors/dense-causal-bottom-right.safetensors 29 dump.safetensors
 *     refattn vectors check vectors dump.safetensors
 *
 * The kernel is float32, causal with bottom-right alignment, with grouped heads: the cases of dense-causal-bottom-right and
 * dense-heads-causal. Numbers in the files are little-endian, and so must the machine be.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { size_t shape[4]; const void *data; } Tensor;

static char *header;              /* the JSON text, which ends with a zero */
static const unsigned char *body; /* the bytes behind it */

static void *need(void *p, const char *what)
{
    if (!p) { fprintf(stderr, "read_vectors: %s\n", what); exit(2); }
    return p;
}

static void load(const char *path)
{
    FILE *f = need(fopen(path, "rb"), path);
    uint64_t length;
    if (fread(&length, 8, 1, f) != 1 || fseek(f, 0, SEEK_END)) need(NULL, "no safetensors file");
    long size = ftell(f);
    if (size < 8 || length > (uint64_t)size - 8) need(NULL, "no safetensors file");
    size_t rest = (size_t)size - 8 - length;
    header = need(calloc(length + 1, 1), "no memory");
    unsigned char *bytes = need(malloc(rest + 1), "no memory");
    if (fseek(f, 8, SEEK_SET) || fread(header, 1, length, f) != length || fread(bytes, 1, rest, f) != rest)
        need(NULL, "the file ends early");
    fclose(f);
    body = bytes;
}

/* The tensor "ID.NAME": its entry in the header is "29.q":{"dtype":"F32","shape":[1,2,17,8],"data_offsets":[0,1088]}. */
static Tensor get(int id, const char *name, const char *dtype)
{
    Tensor t = {{1, 1, 1, 1}, NULL};
    char key[80];
    snprintf(key, sizeof key, "\"%d.%s\":{\"dtype\":\"%s\"", id, name, dtype);
    char *at = need(strstr(header, key), key);
    char *s = (char *)need(strstr(at, "\"shape\":["), key) + 9;
    for (int axis = 0; axis < 4 && *s != ']'; axis++, s += *s == ',') t.shape[axis] = strtoull(s, &s, 10);
    t.data = body + strtoull((char *)need(strstr(s, "\"data_offsets\":["), key) + 16, NULL, 10);
    return t;
}

/* o and lse of one query over the keys that it sees, at most m of them. */
static float query(const float *q, const float *k, const float *v, size_t seen, size_t d, size_t e, float *s, float *o)
{
    float top = -INFINITY, total = 0;
    for (size_t j = 0; j < seen; j++) {
        s[j] = 0;
        for (size_t c = 0; c < d; c++) s[j] += q[c] * k[j * d + c];
        s[j] /= sqrtf((float)d);
        if (s[j] > top) top = s[j];
    }
    for (size_t c = 0; c < e; c++) o[c] = 0;
    if (!seen) return -INFINITY;
    for (size_t j = 0; j < seen; j++) {
        float p = expf(s[j] - top);
        total += p;
        for (size_t c = 0; c < e; c++) o[c] += p * v[j * e + c];
    }
    for (size_t c = 0; c < e; c++) o[c] /= total;
    return top + logf(total);
}

/* 1 if every x is within its bound of the expected value; class 1 is -inf. NaN is within nothing. */
static int within(int id, const char *name, const float *x, size_t count)
{
    char place[64];
    const double *want = get(id, name, "F64").data;
    snprintf(place, sizeof place, "%s.class", name);
    const unsigned char *class = get(id, place, "U8").data;
    snprintf(place, sizeof place, "%s.bound.fp32", name);
    const float *bound = get(id, place, "F32").data;
    for (size_t i = 0; i < count; i++) {
        int fine = class[i] == 1 ? x[i] == -INFINITY : fabs((double)x[i] - want[i]) <= (double)bound[i];
        if (!fine) {
            printf("FAIL %s[%zu]: got %.9g, want %.9g, bound %.2g\n", name, i, (double)x[i], want[i], (double)bound[i]);
            return 0;
        }
    }
    return 1;
}

static void dump(const char *path, int id, Tensor o, Tensor lse)
{
    char text[400];
    size_t rows = lse.shape[0] * lse.shape[1] * lse.shape[2], all = rows * o.shape[3];
    const char *form = "{\"%d.o\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu,%zu,%zu],\"data_offsets\":[0,%zu]},"
                       "\"%d.lse\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu,%zu],\"data_offsets\":[%zu,%zu]}}";
    uint64_t length = (uint64_t)snprintf(text, sizeof text, form, id, o.shape[0], o.shape[1], o.shape[2], o.shape[3], 4 * all,
                                         id, lse.shape[0], lse.shape[1], lse.shape[2], 4 * all, 4 * (all + rows));
    FILE *f = need(fopen(path, "wb"), path);
    if (fwrite(&length, 8, 1, f) != 1 || fwrite(text, 1, length, f) != length || fwrite(o.data, 4, all, f) != all ||
        fwrite(lse.data, 4, rows, f) != rows || fclose(f))
        need(NULL, "the dump can't be written");
}

int main(int argc, char **argv)
{
    if (argc != 4) { fprintf(stderr, "usage: read_vectors FILE ID DUMP\n"); return 2; }
    load(argv[1]);
    int id = atoi(argv[2]);
    Tensor q = get(id, "q", "F32"), k = get(id, "k", "F32"), v = get(id, "v", "F32");
    size_t b = q.shape[0], h = q.shape[1], n = q.shape[2], d = q.shape[3], g = k.shape[1], m = k.shape[2], e = v.shape[3];
    float *o = need(calloc(b * h * n * e + 1, 4), "no memory"), *lse = need(calloc(b * h * n + 1, 4), "no memory");
    float *s = need(calloc(m + 1, 4), "no memory");
    for (size_t r = 0; r < b * h * n; r++) {
        size_t i = r % n, head = r / n % h, item = r / n / h, kv = (item * g + head / (h / g)) * m;
        size_t seen = i + m + 1 > n ? i + m + 1 - n : 0; /* keys j <= i + m - n */
        lse[r] = query((const float *)q.data + r * d, (const float *)k.data + kv * d, (const float *)v.data + kv * e, seen, d, e,
                       s, o + r * e);
    }
    int fine = within(id, "o", o, b * h * n * e) && within(id, "lse", lse, b * h * n);
    dump(argv[3], id, (Tensor){{b, h, n, e}, o}, (Tensor){{b, h, n, 1}, lse});
    if (fine) printf("OK case %d\n", id);
    return !fine;
}
