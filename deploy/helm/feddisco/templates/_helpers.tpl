{{- define "feddisco.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "feddisco.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "feddisco.labels" -}}
{{ include "feddisco.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "feddisco.secret" -}}
{{ .Values.existingSecret | default (include "feddisco.name" .) }}
{{- end -}}

{{- define "feddisco.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "feddisco.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "feddisco.environment" -}}
- {name: FEDDISCO_HOST, value: "0.0.0.0"}
- {name: FEDDISCO_INSECURE, value: "true"} # TLS ends at the ingress
- {name: FEDDISCO_DATA_FOLDER, value: /var/lib/feddisco}
- {name: HOME, value: /tmp}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "feddisco.mounts" -}}
- {name: data, mountPath: /var/lib/feddisco}
- {name: tmp, mountPath: /tmp}
{{- end -}}
