{{/*
The operator's rights. They are those of operator/forebay_operator/rights.py, one rule each, in the same order; a test
compares the two. No Secrets: pods name the ones they mount, and the kubelet reads them.
*/}}
{{- define "forebay.namespacedRules" -}}
- apiGroups: [serving.forebay.dev]
  resources: [inferenceservices]
  verbs: [list, watch]
- apiGroups: [serving.forebay.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [serving.forebay.dev]
  resources: [inferenceservices/scale]
  verbs: [patch]
- apiGroups: [serving.forebay.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}

{{/* Kinds without a namespace: granted by a ClusterRole even when the operator watches some namespaces only. */}}
{{- define "forebay.clusterRules" -}}
- apiGroups: [serving.forebay.dev]
  resources: [acceleratorprofiles]
  verbs: [list, watch]
{{- if .Values.rbac.readNodes }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
{{- end }}
