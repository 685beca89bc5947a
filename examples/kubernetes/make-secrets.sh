#!/bin/sh
# Print two Secrets: the job's secret, and a certificate with its key and authority for TLS.
#   sh examples/kubernetes/make-secrets.sh | kubectl apply -f -
# All ranks share one certificate: any of this authority is a rank's, and host names are not looked at.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
curve="ec -pkeyopt ec_paramgen_curve:P-256"
openssl req -x509 -newkey $curve -nodes -days 365 -subj "/CN=aiodist job authority" \
	-keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey $curve -nodes -subj "/CN=aiodist rank" -keyout tls.key -out tls.csr 2>/dev/null
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out tls.crt 2>/dev/null
encoded() { base64 <"$1" | tr -d '\n'; }
openssl rand -hex 32 | tr -d '\n' >secret
cat <<END
apiVersion: v1
kind: Secret
metadata:
  name: aiodist-train-secret
type: Opaque
data:
  secret: $(encoded secret)
---
apiVersion: v1
kind: Secret
metadata:
  name: aiodist-train-tls
type: kubernetes.io/tls
data:
  tls.crt: $(encoded tls.crt)
  tls.key: $(encoded tls.key)
  ca.crt: $(encoded ca.crt)
END
