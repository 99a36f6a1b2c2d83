{{/* Name of every object of the release: RELEASE-operator, at most 63 characters. */}}
{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := .Release.Name -}}
{{- if not (contains $name $release) -}}
{{- $release = printf "%s-%s" $release $name -}}
{{- end -}}
{{- printf "%s-operator" ($release | trunc 54 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{/* What identifies the operator's pod: immutable once installed. */}}
{{- define "forebay.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object. */}}
{{- define "forebay.labels" -}}
{{ include "forebay.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: forebay
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Names of Services hold no dots: a suffix makes them from the full name. */}}
{{- define "forebay.metricsName" -}}
{{- printf "%s-metrics" (include "forebay.fullname" . | replace "." "-" | trunc 55 | trimSuffix "-") -}}
{{- end }}

{{- define "forebay.webhookName" -}}
{{- printf "%s-webhook" (include "forebay.fullname" . | replace "." "-" | trunc 55 | trimSuffix "-") -}}
{{- end }}

{{- define "forebay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "forebay.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "forebay.operatorImage" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- define "forebay.engineImage" -}}
{{- default (printf "forebay-server:%s" .Chart.AppVersion) .Values.engine.image -}}
{{- end }}
