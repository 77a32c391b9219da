"""Someone's LSH attention in NumPy, chunk 4, causal, no wrap: sort, gather, softmax per round, merge by logsumexp."""
import numpy as np
C = 4

def _hash(x, R):
    p = np.einsum("hnd,hrdw->hrnw", x, R)
    return np.argmax(np.concatenate([p, -p], -1), -1)

def _plan(bk, n):
    order = np.argsort(bk.astype(np.int64) * n + np.arange(n), axis=-1)
    pad = (-n) % C
    order = np.concatenate([order, np.full((*order.shape[:-1], pad), -1, np.int64)], -1)
    ch = order.reshape(*order.shape[:-1], -1, C)
    prev = np.concatenate([np.full_like(ch[..., :1, :], -1), ch[..., :-1, :]], -2)
    return ch, np.concatenate([prev, ch], -1)

def attention(qk, v, rotations=None, buckets=None):
    out, lse, all_b = [], [], []
    for item in range(qk.shape[0]):
        bk = _hash(qk[item], rotations) if buckets is None else buckets[item]
        all_b.append(bk)
        oo, ll = zip(*[_head(qk[item, h], v[item, h], bk[h]) for h in range(qk.shape[1])])
        out.append(np.stack(oo)); lse.append(np.stack(ll))
    return {"o": np.stack(out), "lse": np.stack(lse), "buckets": np.stack(all_b)}

def _head(x, v, bk):
    n = len(x)
    if n == 0:
        return v * 0, np.zeros(0, x.dtype)
    k = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-30))
    ch, win = _plan(bk, n)
    os_, ls = [], []
    for r in range(bk.shape[0]):
        o = np.zeros_like(v); l = np.zeros(n, x.dtype)
        for q, w in zip(ch[r], win[r]):
            q = q[q >= 0]
            s = x[q] @ k[w].T
            s = np.where(q[:, None] == w, np.float32(-1e5), s)
            s = np.where((w < 0) | (w > q[:, None]), -np.inf, s).astype(x.dtype)
            m = s.max(-1, keepdims=True); e = np.exp(s - m); z = e.sum(-1, keepdims=True)
            o[q] = e / z @ v[w]; l[q] = (m + np.log(z))[:, 0]
        os_.append(o); ls.append(l)
    L = np.stack(ls); m = L.max(0); z = np.exp(L - m).sum(0); lse = m + np.log(z)
    w = np.exp(L - m) / z
    return (w[..., None] * np.stack(os_)).sum(0).astype(v.dtype), lse

def attention_vjp(qk, v, do, o, lse, buckets, dlse=None):
    dqk, dv = np.zeros_like(qk), np.zeros_like(v)
    for i in range(qk.shape[0]):
        for h in range(qk.shape[1]):
            _head_vjp(qk[i, h], v[i, h], buckets[i, h], do[i, h], o[i, h], lse[i, h], None if dlse is None else dlse[i, h], dqk[i, h], dv[i, h])
    return {"dqk": dqk, "dv": dv}

def _head_vjp(x, v, bk, do, o, lse, dlse, dx, dv):
    n = len(x)
    if n == 0: return
    nrm = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-30)); k = x / nrm
    D = (do * o).sum(-1) - (0 if dlse is None else dlse)
    ch, win = _plan(bk, n); dk = np.zeros_like(x)
    alone = lse < -5e4
    for r in range(bk.shape[0]):
        for q, w in zip(ch[r], win[r]):
            q = q[q >= 0]
            s = x[q] @ k[w].T
            me = q[:, None] == w
            s = np.where((w < 0) | (w > q[:, None]), -np.inf, s)
            p = np.where(me, 0, np.exp(np.minimum(s - lse[q][:, None], 80)))
            p = np.where(alone[q][:, None], me * np.float32(1 / bk.shape[0]), p).astype(x.dtype)
            ds = np.where(me, 0, p * (do[q] @ v[w].T - D[q][:, None])).astype(x.dtype)
            ok = w >= 0
            dx[q] += ds @ k[w]
            np.add.at(dk, w[ok], (ds.T @ x[q])[ok]); np.add.at(dv, w[ok], (p.T @ do[q])[ok])
    dx += (dk - k * (k * dk).sum(-1, keepdims=True)) / nrm
