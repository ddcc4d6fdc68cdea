#!/bin/bash
# From nothing to three streaming PostgreSQL instances, and how to go on.
# usage: demo.sh up|down
source "${BASH_SOURCE[0]%/*}/lib.sh"

namespace=demo operator_namespace=postgres-operator-system

# The plain manifests, with the images built here put in.
manifests() {
  local folder image major
  image=$(<"$target/operator-image")
  folder=$(mktemp -d)
  cp "$repo/bundle/plain/install.yaml" "$folder/"
  {
    echo 'resources: [install.yaml]'
    echo "images: [{name: postgres-operator, newName: \"${image%:*}\", newTag: \"${image##*:}\"}]"
    echo 'patches:'
    echo '  - patch: |'
    echo '      apiVersion: apps/v1'
    echo '      kind: Deployment'
    echo "      metadata: {name: postgres-operator, namespace: $operator_namespace}"
    echo '      spec: {template: {spec: {containers: [{name: controller, env: ['
    for major in 15 17 18; do echo "        {name: POSTGRES_IMAGE_$major, value: \"$registry_in_cluster/postgres:$major\"},"; done
    echo "        {name: OPERATOR_IMAGE, value: \"$image\"}]}]}}}"
  } >"$folder/kustomization.yaml"
  kubectl kustomize "$folder"
  rm -rf "$folder"
}

install_operator() {
  say "installing the operator (bundle/plain/install.yaml)"
  manifests | logged demo-install kubectl apply --server-side --force-conflicts --filename -
  logged demo-rollout kubectl --namespace "$operator_namespace" rollout status --timeout=120s deployment/postgres-operator
  logged demo-crd kubectl wait --for=condition=Established --timeout=60s crd/postgresclusters.db.example.com
}

# One line of what the operator reports, printed when it changes.
state() {
  kubectl --namespace "$namespace" get postgrescluster demo --output jsonpath='{.status.readyReplicas} of {.spec.replicas} ready, primary {.status.primary}; {range .status.conditions[?(@.status=="True")]}{.type}: {.message} {end}' 2>/dev/null || true
}

is_ready() { [ "$(kubectl --namespace "$namespace" get postgrescluster demo --output jsonpath='{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }

wait_ready() {
  local limit=$((EPOCHSECONDS + 180)) last='' now
  until is_ready; do
    now=$(state)
    if [ "$now" != "$last" ]; then say "demo: $now"; fi
    last=$now
    if ((EPOCHSECONDS >= limit)); then
      kubectl --namespace "$namespace" get postgrescluster,pods --output wide >&2 || true
      kubectl --namespace "$operator_namespace" logs deployment/postgres-operator --tail=15 >&2 || true
      fail "the demo isn't Ready after 3 minutes; its state is above"
    fi
    sleep 1
  done
}

up() {
  [ -f "$repo/bundle/plain/install.yaml" ] || fail "bundle/plain/install.yaml is missing: run make generate"
  "$repo/hack/cluster.sh" up
  "$repo/hack/image.sh"
  install_operator
  say "creating the PostgresCluster demo (docs/samples/demo.yaml)"
  kubectl create namespace "$namespace" --dry-run=client --output yaml | logged demo-namespace kubectl apply --filename -
  local began=$EPOCHSECONDS
  logged demo-apply kubectl apply --server-side --filename "$repo/docs/samples/demo.yaml"
  wait_ready
  say "demo is Ready, $((EPOCHSECONDS - began)) s after it was created"
  goodbye
}

goodbye() {
  echo
  kubectl --namespace "$namespace" get postgrescluster demo
  echo
  kubectl --namespace "$namespace" get postgrescluster demo --output go-template='{{range .status.instances}}{{printf "%s\t%v\t%v\t%v\t%v\n" .name .role .ready .timeline .node}}{{end}}' |
    { printf 'INSTANCE\tROLE\tREADY\tTIMELINE\tNODE\n' && cat; } | expand -t 12,24,32,42
  cat <<-END

	Every command below needs:    export KUBECONFIG=$KUBECONFIG PATH=$cache/bin:\$PATH

	A shell in the primary:       kubectl -n demo exec -it $(kubectl --namespace "$namespace" get postgrescluster demo --output jsonpath='{.status.primary}') -c postgres -- psql -h /run/postgresql -U postgres
	As the application does:      kubectl -n demo get secret demo-app -o jsonpath='{.data.uri}' | base64 -d
	What the operator says:       kubectl -n demo describe postgrescluster demo
	Who streams from whom:        kubectl -n demo exec demo-0 -c postgres -- psql -h /run/postgresql -U postgres -c 'select application_name, state, sync_state from pg_stat_replication'
	Remove the demo:              make demo-down
	Remove the cluster as well:   make cluster-down
	END
}

down() {
  "$repo/hack/engine.sh"
  if ! kubectl --request-timeout=5s get --raw /readyz >/dev/null 2>&1; then
    say "no cluster answers, so there is no demo to remove"
    return
  fi
  say "removing the demo and the operator"
  logged demo-down kubectl delete namespace "$namespace" --ignore-not-found --timeout=120s
  logged demo-down kubectl delete --ignore-not-found --timeout=120s --filename "$repo/bundle/plain/install.yaml"
  say "the demo is gone; the cluster runs on (make cluster-down removes it)"
}

case ${1-} in
  up) up ;;
  down) down ;;
  *) fail "usage: demo.sh up|down" ;;
esac
